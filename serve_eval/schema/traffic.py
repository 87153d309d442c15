"""Counts of attempts, times, tokens and load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_eval.schema.plan import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Tokens per step of speculative decoding, over the `answers` that report it.

    docs/method.md has the formulas. `length` leaves out the first step of each answer, which has no
    draft; references are compared with it (None: no answer had a second step). `all_steps` counts
    that step. `per_answer` is the mean of the answers' own figures.
    """

    answers: int
    length: float | None
    all_steps: float
    per_answer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSpan:
    """The answers with one system_fingerprint: how many, and when they came.

    `first_s` is when the first of them was asked and `last_s` when the last one came, in seconds
    since 1970.
    """

    answers: int
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic of a task, over all sessions.

    `attempts` counts requests, `retries` those beyond a sample's first by the failure before
    ("http_error 429"), `not_streamed` those among them that asked without streaming for an answer
    that a stream had lost. Times are percentiles (p50, p90, p99, max) in seconds of answered
    requests; empty if nothing was measured. `acceptance` exists if answers report their tokens per
    step. `cached_tokens` of the prompts came from a prefix cache (None: no answer reports it).
    `system_fingerprints` has the answers by the configuration that their servers name, in the order
    of their beginnings; empty if no server names it.
    """

    attempts: int
    retries: Mapping[str, int]
    not_streamed: int
    latency_s: Mapping[str, float]
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    prompt_tokens: int
    completion_tokens: int
    acceptance: Acceptance | None = None
    cached_tokens: int | None = None
    system_fingerprints: Mapping[str, AnswerSpan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyStep:
    """A change of the number of requests in flight.

    `at_s` is in seconds after the session's first request. `samples_per_s` and `latency_s` are the
    samples finished per second and their mean latency in seconds under the number before.
    """

    at_s: float
    concurrency: int
    samples_per_s: float
    latency_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one session.

    `loop_lag_s` is the longest delay of our own event loop: the error of the measured times.
    `steps` are the changes of an automatic concurrency. `cancelled` counts the requests in flight
    that an early stop, or the end of the session, gave up; `met_start` those that waited while the
    endpoint reported that it was starting. No server listened in `outages` that
    ended, for `away_s` together. `cores_busy` is the share of the time for which the cores of this
    machine were busy (None: not known).
    """

    limits: Limits
    order_seed: int
    finished: int
    wall_s: float
    max_in_flight: int
    retries: int
    retry_budget: int
    loop_lag_s: float
    steps: tuple[ConcurrencyStep, ...] = ()
    cancelled: int = 0
    met_start: int = 0
    outages: int = 0
    away_s: float = 0.0
    cores_busy: float | None = None
