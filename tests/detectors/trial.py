"""Run one trial: compare a sound aggregated deployment with a faulty disaggregated one.

The comparison is the one of a user. The servers are the stand-in's, on sockets of this process; the
code that reads their answers is the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from serve_eval.errors import EndpointError
from serve_eval.evaluation.endpoint.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers.simulated import probability
from serve_eval.schema import Attributed, Comparison, Degradation, Limits, Plan, Spec
from serve_eval.storage.reports.report_file import read_report
from serve_eval.workflows.attribute import attribute
from serve_eval.workflows.compare.compare import SELF, CompareRules, CompareSide, compare
from serve_eval.workflows.smoke.smoke import Smoke
from tests.standin.in_process import Deployed, aggregated, deployed
from tests.workflows.smoke.trying import smoke_at

CONTEXT, GENERATION = 2, 4
"""Numbers of context and generation servers of the disaggregated deployment."""
ACCURACY, FLIP_RATE = 0.9, 0.03
WHOLE = {"latency_s": 0.04, "latency_jitter_s": 0.02}
LEGS = {
    "context": {"latency_s": 0.01, "latency_jitter_s": 0.01},
    "generation": {"latency_s": 0.02, "latency_jitter_s": 0.01},
}
"""Latencies of sound servers in seconds; both legs take about as long as an aggregated server."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fault:
    """The fault of the disaggregated side.

    `faulty`: fields of Faults, for all generation servers or for number `only` (from 0).
    `wrong_pair`: the second server cannot read the output of the first. `stream`: whether streams
    are requested.
    """

    name: str
    faulty: Mapping[str, object] = field(default_factory=dict)
    only: int | None = None
    wrong_pair: tuple[str, str] | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The findings about the disaggregated side.

    `comparison` is the result, or `ended` the error that ended it; `asked` is the result of asking
    each server on its own. `folder` is the run folder. `blamed` are the servers with the fault,
    none if all have it.
    """

    folder: Path
    comparison: Comparison | None
    ended: EndpointError | None
    asked: Attributed | None
    blamed: frozenset[str]

    @property
    def degradations(self) -> tuple[Degradation, ...]:
        return tuple(one for task in read_report(self.folder).tasks for one in task.degradations)


def tried(
    fault: Fault,
    n: int,
    seed: int,
    out: Path,
    *,
    again: int = SELF,
    accuracy: float = ACCURACY,
    samples: int = 0,
) -> Trial:
    """Ask both sides n problems and compare them in the folder `out`.

    Then ask each server `samples` samples on its own.
    """
    out.mkdir(parents=True)
    asked, known = _plan(n, stream=fault.stream), out / "answers.jsonl"
    _write_answers(known, prepare(asked), probability(accuracy, FLIP_RATE, seed))
    rules = CompareRules(rule=Spec(name="paired"), again=again)

    async def both() -> Trial:
        a = MadeUpModel(known, seed=seed, run="a", varied=True)
        async with (
            aggregated(a, {**WHOLE, "seed": seed}) as whole,
            split(fault, known, seed) as other,
        ):
            sides = [
                CompareSide(
                    plan=replace(asked, launcher=Spec(name="external", options={"base_url": url}))
                )
                for url in (whole, other.url)
            ]
            comparison = ended = None
            try:
                comparison = await compare(
                    *sides, rules, out / "compared", environ={}, show_flips=0
                )
            except EndpointError as error:
                ended = error
            folder = out / "compared" / "b"
            alone = await _each_asked(folder, sides[1].plan, other, samples) if samples else None
            return Trial(
                folder=folder,
                comparison=comparison,
                ended=ended,
                asked=alone,
                blamed=_blamed(fault, other),
            )

    return asyncio.run(both())


async def _each_asked(run: Path, asked: Plan, there: Deployed, samples: int) -> Attributed:
    """Ask each server in the same way as serve-eval check workers RUN --worker ... does."""
    given = [
        attribute.worker(f"{name.rpartition('_')[0]}={url}") for name, url in there.workers.items()
    ]
    asking = await attribute.prepare_asking(run, asked, given=given, samples=samples, environ={})
    return await attribute.attribute(run, asking, environ={})


def smoked(fault: Fault, seed: int) -> Smoke:
    """Run a quick smoke test of a disaggregated deployment.

    Its servers answer as an instructed model would.
    """

    async def front() -> Smoke:
        async with split(fault, None, seed) as there:
            return await smoke_at(there.url, level="quick", model="m")

    return asyncio.run(front())


@asynccontextmanager
async def split(fault: Fault, known: Path | None, seed: int) -> AsyncIterator[Deployed]:
    """Serve the disaggregated deployment with its fault.

    Without an answer file the servers have skills.
    """
    workers = [("context", i) for i in range(CONTEXT)] + [
        ("generation", i) for i in range(GENERATION)
    ]
    faults: dict[str, dict[str, object]] = {}
    for number, (role, i) in enumerate(workers):
        struck = role == "generation" and fault.only in (None, i)
        faults[f"{role}_{i}"] = {
            **LEGS[role],
            "seed": 100 * seed + number,
            **(fault.faulty if struck else {}),
        }

    def model(worker: str) -> MadeUpModel:
        return MadeUpModel(known, seed=seed, run=worker, varied=True, skilled=known is None)

    async with deployed(
        CONTEXT, GENERATION, model=model, faults=faults, wrong_pair=fault.wrong_pair, greeted=False
    ) as there:
        yield there


def _plan(n: int, *, stream: bool) -> Plan:
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="word_problems", options={"num_samples": n}),),
        no_reference=True,
        limits=Limits(concurrency=8, stream=stream),
    )


def _blamed(fault: Fault, there: Deployed) -> frozenset[str]:
    if fault.wrong_pair is not None:
        return frozenset(there.host(name) for name in fault.wrong_pair)
    return (
        frozenset() if fault.only is None else frozenset({there.host(f"generation_{fault.only}")})
    )
