"""Answers of fleets of GPUs: stated rates, and what they do to one client process. Simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from costs import Cost
from kinds import Kind
from queueing import (
    Times,
    draw_bursts,
    draw_poisson,
    find_delays,
    find_length,
    percentile,
    shards_needed,
)

FLEETS = (100, 1000)
SAMPLES = (14_042, 1_000_000)
"""Questions of MMLU, and a large evaluation."""
SHARDS = (1, 4, 16)
MOST = 0.7
"""Share of its time up to which a process may be busy."""
STABLE = 0.98
"""Load from which on delays are not simulated: they grow during the whole evaluation."""
OUTPUT, INPUT = (1000, 1000), (8192, 1024)


@dataclass(frozen=True, slots=True)
class Model:
    """Published throughput of one GPU, in output tokens per second.

    `short` is that of prompts of 1000 and answers of 1000 tokens, `long` that of prompts of 8192
    and answers of 1024. The source is TensorRT-LLM's page "perf-overview" at commit 03e27c7.
    """

    name: str
    short: float
    long: float

    def answers(self, kind: Kind) -> float:
        """Return the answers per second that one GPU gives.

        Answers of many tokens take as many output tokens as they have. Others are limited by their
        prompts: `long` counts all tokens, those of prompts included.
        """
        if kind.tokens > kind.new_tokens:
            return self.short / kind.tokens
        return self.long * sum(INPUT) / INPUT[1] / (kind.new_tokens + kind.tokens)


MODELS = (Model("Llama 3.3 70B", 6_920, 1_362), Model("GPT-OSS 20B", 53_812, 11_904))
"""Both with weights of 4 bits, each on one B200."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of the simulation about servers.

    A server of `server_gpus` GPUs makes a step every `step_s`. A request is in flight for
    `first_s` and a step per token. `given` replaces rates per GPU, by kind.
    """

    server_gpus: int = 8
    step_s: float = 0.03
    first_s: float = 0.2
    given: Mapping[str, float] | None = None
    seed: int = 1

    def latency_s(self, kind: Kind) -> float:
        """Return the seconds for which a request is in flight."""
        return self.first_s + kind.tokens * self.step_s

    def rate(self, model: Model, kind: Kind) -> float:
        """Return the answers per second of one GPU."""
        given = (self.given or {}).get(kind.name)
        return model.answers(kind) if given is None else given


@dataclass(frozen=True, slots=True)
class Load:
    """One process that takes all answers of a fleet. Delays are in seconds (None: they grow).

    For a stream, they are the delays of a token.
    """

    rate: float
    in_flight: float
    load: float
    needed: int
    poisson: tuple[float, float] | None
    bursts: tuple[float, float] | None


def simulate_load(cost: Cost, model: Model, gpus: int, assumed: Assumptions, count: int) -> Load:
    """Return the load of one process, and the median and 99th percentile of the delays."""
    kind = cost.kind
    rate = gpus * assumed.rate(model, kind)
    load = rate * cost.cpu_s
    stable = load < STABLE
    delays = simulate_delays(cost, rate, gpus, assumed, count) if stable else (None, None)
    return Load(
        rate=rate,
        in_flight=rate * assumed.latency_s(kind),
        load=load,
        needed=shards_needed(rate, cost.cpu_s, MOST),
        poisson=delays[0],
        bursts=delays[1],
    )


def simulate_delays(
    cost: Cost, rate: float, gpus: int, assumed: Assumptions, count: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the median and 99th percentile of the delays: Poisson arrivals, then bursts."""
    rng, events = np.random.default_rng(assumed.seed), rate * cost.kind.events
    poisson = _delays(cost, draw_poisson(events, count, rng), rng)
    servers = max(1, gpus // assumed.server_gpus)
    arrivals = draw_bursts(events, count, rng, servers=servers, step_s=assumed.step_s)
    return poisson, _delays(cost, arrivals, rng)


def _delays(cost: Cost, arrivals: Times, rng: np.random.Generator) -> tuple[float, float]:
    count = len(arrivals)
    delays = find_delays(arrivals, rng.choice(cost.busy, count), rng.choice(cost.idle, count))
    settled = delays[count // 10 :]
    return percentile(settled, 50), percentile(settled, 99)


def simulate_length(
    cost: Cost, rate: float, samples: int, shards: int, before_s: float, seed: int
) -> float:
    """Return the seconds of an evaluation: those before its first answer, and its flow of answers.

    No shards: those of the endpoint alone, with clients that need no time. Tokens of a stream that
    wait arrive together, so that an answer takes only the time of one that comes at once.
    """
    rng = np.random.default_rng(seed)
    observed = np.full(1, cost.backlog_s) if cost.backlog_s else cost.busy
    arrivals = draw_poisson(rate, samples, rng)
    if not shards:
        return before_s + float(arrivals[-1])
    return before_s + find_length(arrivals, observed, shards, rng)
