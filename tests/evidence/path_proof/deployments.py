"""Print how often each fault of a path is found and named, and how often a sound one is accused.

Run `python -m tests.evidence.path_proof.deployments [FAULTS] [SOUND]`: 20 runs of each fault and
100 of sound deployments by default. Each run draws another order of the prompts and, for answers
that do not repeat, other prompts: one answer in 15 differs when it is asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Limits, Plan, ProofState, Spec
from tests.scripted_server import ScriptedServer, answer, json_reply, raw

PROMPT, ANSWER, DRAFTED = 70, 12, 9
"""Tokens of a prompt and of an answer, and draft tokens for one."""
BEGINNING = "Read the question with care and show every step of your reasoning. " * 20
EVERYTHING = ("kv_transfer", "prefix_cache", "speculation", "deterministic")


class PathFault(StrEnum):
    """The parts of the path that are missing without an error."""

    NONE = "none"
    BYPASS = "decode prefills again"
    NO_TRANSFER = "KV never moves"
    NO_ACCEPTANCE = "no draft is accepted"
    NO_SPECULATION = "speculation is off"
    COLD = "cache is never hit"
    UNSTEADY = "determinism is filtered away"
    IDLE = "one context server is idle"


CLAIMS = {
    PathFault.BYPASS: "kv_transfer",
    PathFault.NO_TRANSFER: "kv_transfer",
    PathFault.NO_ACCEPTANCE: "speculation",
    PathFault.NO_SPECULATION: "speculation",
    PathFault.COLD: "prefix_cache",
    PathFault.UNSTEADY: "deterministic",
}
"""The claim that each fault refutes."""


@dataclass
class CountingServer:
    """A server that tells its counters as vLLM does; without `readable` it has none."""

    readable: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    speculates: bool = True
    server: ScriptedServer = field(init=False)

    def __post_init__(self):
        listed = {"id": "m", "object": "model", "owned_by": "vllm"}
        self.server = ScriptedServer(
            routes={
                "/v1/models": json_reply({"object": "list", "data": [listed]}),
                "/metrics": self._metrics,
            }
        )

    def _metrics(self, request):
        if not self.readable:
            return raw(status=404)
        names = {
            "request_success": "",
            "prompt_tokens": "",
            "generation_tokens": "",
            "prefix_cache_queries": "",
            "prefix_cache_hits": "",
            "local_compute": "prompt_tokens_by_source",
            "external_kv_transfer": "prompt_tokens_by_source",
        }
        if self.speculates:
            drafts = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
            names |= {f"spec_decode_{name}": "" for name in drafts}
        lines = []
        for name, family in names.items():
            label = 'engine="0",model_name="m"' + (f',source="{name}"' if family else "")
            lines.append(f"vllm:{family or name}_total{{{label}}} {self.counts[name]}.0")
        return raw("\n".join(lines).encode() + b"\n")


class Deployment:
    """Context servers, a generation server, and a front door that shares the work among them."""

    def __init__(
        self,
        fault=PathFault.NONE,
        *,
        seed=0,
        readable=True,
        unsteady=0.15,
        usage=False,
    ):
        self.fault, self.seed, self.unsteady, self.usage = fault, seed, unsteady, usage
        speculates = fault is not PathFault.NO_SPECULATION
        self.context = [CountingServer(readable, speculates=False) for _ in range(2)]
        self.generation = CountingServer(readable, speculates=speculates)
        self.front = ScriptedServer(
            self._answer, routes={"/v1/models": json_reply({"data": [{"id": "m"}]})}
        )
        self._asked = Counter()

    @property
    def servers(self):
        """The servers behind the front door, by name."""
        named = {f"context_{number}": one for number, one in enumerate(self.context)}
        return {**named, "generation_0": self.generation}

    def _answer(self, request):
        text = str(request.body.get("prompt") or request.body.get("messages"))
        if request.max_tokens < 10:
            return answer("probe", usage=(1, 1))
        self._asked[text] += 1
        self._count(len(self.front.asked))
        draw = hashlib.blake2b(f"{self.seed} {text}".encode()).digest()[0] / 256
        varied = self.fault is PathFault.UNSTEADY and draw < self.unsteady
        said = f"It is {self._asked[text] if varied else 1}. #### 1"
        told = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER}
        cached = {"prompt_tokens_details": {"cached_tokens": 0}} if self.usage else {}
        return answer(said, body={"usage": {**told, **cached}})

    def _count(self, number):
        """Count a request at the servers that took part in it."""
        fault, generation = self.fault, self.generation.counts
        moves = fault not in (PathFault.BYPASS, PathFault.NO_TRANSFER)
        if fault is not PathFault.BYPASS:
            context = self.context[0 if fault is PathFault.IDLE else number % 2].counts
            context.update(
                request_success=1, prompt_tokens=PROMPT, generation_tokens=1, local_compute=PROMPT
            )
            warm = fault is not PathFault.COLD and number > 4
            context.update(prefix_cache_queries=PROMPT, prefix_cache_hits=64 * warm)
        generation.update(
            request_success=1,
            prompt_tokens=PROMPT,
            generation_tokens=ANSWER,
            **{"external_kv_transfer" if moves else "local_compute": PROMPT},
        )
        if fault is not PathFault.NO_SPECULATION:
            accepted = 0 if fault is PathFault.NO_ACCEPTANCE else 4
            generation.update(
                spec_decode_num_drafts=3,
                spec_decode_num_draft_tokens=DRAFTED,
                spec_decode_num_accepted_tokens=accepted,
            )


def run(
    deployed,
    folder,
    *,
    expect=EVERYTHING,
    samples=24,
    named=True,
    notify=None,
    **more,
):
    """Run a task at a deployment. Without `named`, nobody lists the servers behind its door."""

    async def main():
        async with AsyncExitStack() as stack:
            front = await stack.enter_async_context(deployed.front.serve())
            behind = {
                name: await stack.enter_async_context(one.server.serve())
                for name, one in deployed.servers.items()
            }
            options = {"base_url": front, "servers": behind} if named else {"base_url": front}
            given = {"no_reference": True, "repeats": 1, **more}
            launcher = given.pop("launcher", Spec(name="external"))
            plan = Plan(
                model="m",
                launcher=replace(launcher, options={**launcher.options, **options}),
                tasks=(
                    Spec(
                        name="word_problems",
                        options={"num_samples": samples, "system_prompt": BEGINNING},
                    ),
                ),
                limits=Limits(concurrency=8, max_attempts=1),
                expect=expect if isinstance(expect, dict) else dict.fromkeys(expect, True),
                **given,
            )
            heard = (lambda line: None) if notify is None else notify
            return await evaluate(plan, folder, environ={}, notify=heard, moved=True)

    return asyncio.run(main())


SAMPLES, UNSTEADY = 80, 1 / 15
ALL = ("kv_transfer", "prefix_cache", "speculation", "deterministic")
ALSO = {PathFault.BYPASS: {"prefix_cache"}}
"""Claims that a fault refutes too: without a context server, no prefix cache is searched."""


class PathTrial(NamedTuple):
    """The result of one run: what was refuted or unknown, and what it took."""

    refuted: frozenset[str]
    unknown: frozenset[str]
    requests: int
    seconds: float


def try_once(fault, seed, *, readable=True):
    """Run one deployment and return what was found."""
    deployed = Deployment(fault, seed=seed, readable=readable, unsteady=UNSTEADY)
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = run(deployed, Path(folder) / "run", expect=ALL, samples=SAMPLES)
    by_state = {
        state: frozenset(one.claim.value for one in report.path if one.state is state)
        for state in ProofState
    }
    reasons = report.tasks[0].verdict.reasons
    named = frozenset(
        claim for claim in ALL if any(f"path not proven: {claim}: " in line for line in reasons)
    )
    return PathTrial(
        by_state[ProofState.REFUTED] & named,
        by_state[ProofState.UNKNOWN],
        len(deployed.front.asked),
        time.monotonic() - began,
    )


def describe_trials(name, claim, allowed, trials):
    """Return a row of the table."""
    found = sum(bool(one.refuted | one.unknown) for one in trials)
    named = sum(claim in one.refuted and one.refuted <= {claim, *allowed} for one in trials)
    requests = sum(one.requests for one in trials) / len(trials)
    seconds = sum(one.seconds for one in trials) / len(trials)
    told = "-" if claim is None else f"{named} of {len(trials)}"
    return f"| {name} | {found} of {len(trials)} | {told} | {requests:.0f} | {seconds:.2f} |"


def main(faults=20, sound=100):
    """Print the table."""
    print(f"{SAMPLES} prompts a run; requests with probes; seconds of the whole run")
    print("| deployment | found | named | requests | seconds |")
    print("|---|---|---|---|---|")
    for fault, claim in CLAIMS.items():
        trials = [try_once(fault, seed) for seed in range(faults)]
        print(describe_trials(fault, claim, ALSO.get(fault, set()), trials), flush=True)
    trials = [try_once(PathFault.NONE, seed, readable=False) for seed in range(faults)]
    unknown = sum(len(one.unknown) == 3 for one in trials)
    print(describe_trials("sound, without counters", None, set(), trials), flush=True)
    trials = [try_once(PathFault.NONE, seed) for seed in range(sound)]
    print(describe_trials("sound", None, set(), trials))
    print(f"without counters, three claims are unknown: {unknown} of {faults}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
