"""Run trials with injected faults, and collect the findings of each detector.

The comparison is the one of a user. The servers are the stand-in's, on sockets of this process; the
code that reads their answers is the real one.

There are 2 context servers and 4 generation servers, so each of the latter has a quarter of the
requests, and each pair an eighth.
"""

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import EndpointError
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.degradation import describe
from serve_eval.evidence.attribution.latency import describe_slow as told_of_slow
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers.simulated import probability
from serve_eval.schema import (
    Attributed,
    Comparison,
    Limits,
    Outcome,
    Plan,
    Spec,
)
from serve_eval.storage.file_names import REPORT_FILE
from serve_eval.storage.report_file import read_report
from serve_eval.verdicts.exit_code import FAIL
from serve_eval.workflows.attribute import attribute
from serve_eval.workflows.compare.compare import SELF, CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.story import diagnose
from tests.scripted_server import external
from tests.standin.deployments import aggregated, deployed
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
    def degradations(self):
        return tuple(one for task in read_report(self.folder).tasks for one in task.degradations)


def tried(
    fault,
    n,
    seed,
    out,
    *,
    again=SELF,
    accuracy=ACCURACY,
    samples=0,
):
    """Ask both sides n problems and compare them in the folder `out`.

    Then ask each server `samples` samples on its own.
    """
    out.mkdir(parents=True)
    asked, known = _plan(n, stream=fault.stream), out / "answers.jsonl"
    _write_answers(known, prepare(asked), probability(accuracy, FLIP_RATE, seed))
    rules = CompareRules(rule=Spec(name="paired"), again=again)

    async def both():
        a = MadeUpModel(known, seed=seed, run="a", varied=True)
        async with (
            aggregated(a, {**WHOLE, "seed": seed}) as whole,
            split(fault, known, seed) as other,
        ):
            sides = [
                CompareSide(plan=replace(asked, launcher=external(url)))
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


async def _each_asked(run, asked, there, samples):
    """Ask each server in the same way as serve-eval check workers RUN --worker ... does."""
    given = [
        attribute.worker(f"{name.rpartition('_')[0]}={url}") for name, url in there.workers.items()
    ]
    asking = await attribute.prepare_asking(run, asked, given=given, samples=samples, environ={})
    return await attribute.attribute(run, asking, environ={})


def smoked(fault, seed):
    """Run a quick smoke test of a disaggregated deployment.

    Its servers answer as an instructed model would.
    """

    async def front():
        async with split(fault, None, seed) as there:
            return await smoke_at(there.url, level="quick", model="m")

    return asyncio.run(front())


@asynccontextmanager
async def split(fault, known, seed):
    """Serve the disaggregated deployment with its fault.

    Without an answer file the servers have skills.
    """
    workers = [("context", i) for i in range(CONTEXT)] + [
        ("generation", i) for i in range(GENERATION)
    ]
    faults = {}
    for number, (role, i) in enumerate(workers):
        struck = role == "generation" and fault.only in (None, i)
        faults[f"{role}_{i}"] = {
            **LEGS[role],
            "seed": 100 * seed + number,
            **(fault.faulty if struck else {}),
        }

    def model(worker):
        return MadeUpModel(known, seed=seed, run=worker, varied=True, skilled=known is None)

    async with deployed(
        CONTEXT, GENERATION, model=model, faults=faults, wrong_pair=fault.wrong_pair, greeted=False
    ) as there:
        yield there


def _plan(n, *, stream):
    return Plan(
        model="m",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="word_problems", options={"num_samples": n}),),
        no_reference=True,
        limits=Limits(concurrency=8, stream=stream),
    )


def _blamed(fault, there):
    if fault.wrong_pair is not None:
        return frozenset(there.host(name) for name in fault.wrong_pair)
    return (
        frozenset() if fault.only is None else frozenset({there.host(f"generation_{fault.only}")})
    )


SOUND = Fault(name="none: a healthy pair")
FAULTS = (
    Fault(
        name="all generation servers answer half of the requests wrongly from request 100 on",
        faulty={"corrupt_after": 25, "share": 0.5},
    ),
    Fault(name="one generation server of 4 answers wrongly", faulty={"corrupt_after": 0}, only=2),
    Fault(
        name="one pair of a context and a generation server of 8 answers wrongly",
        wrong_pair=("context_0", "generation_1"),
    ),
    Fault(
        name="a tenth of the streams is dropped",
        faulty={"drop_stream": 2, "share": 0.1},
        stream=True,
    ),
    Fault(
        name="one generation server of 4 refuses everything: 400, wrapped in a 500",
        faulty={"error_after": 0},
        only=2,
    ),
    Fault(
        name="the generation servers refuse a tenth of the requests so",
        faulty={"error_after": 3, "share": 0.1},
    ),
    Fault(name="the generation leg takes 0.2 s instead of 0.02 s", faulty={"latency_s": 0.2}),
    Fault(
        name="one generation server of 4 takes 0.2 s instead of 0.02 s",
        faulty={"latency_s": 0.2},
        only=2,
    ),
    Fault(
        name="one generation server of 4 loses the KV cache from request 100 on: empty answers",
        faulty={"kv_loss_after": 25},
        only=2,
    ),
    Fault(
        name="a tenth of the KV caches is lost: empty answers",
        faulty={"kv_loss_after": 0, "share": 0.1},
    ),
)


COMPARE, ALARM, ATTRIBUTION, ASKED = (
    "compare",
    "drift alarm",
    "attribution of the run",
    "serve-eval check workers",
)
DIAGNOSE, COUNTS = "diagnose", "counts and exit code"
NAMES = (COMPARE, ALARM, ATTRIBUTION, ASKED, DIAGNOSE, COUNTS)
NAMED = ("more_flips", "slower", "uneven", "more_failures")
"""Warnings of compare."""


class Finding(NamedTuple):
    """The detector, its short name of the finding, and the sentence that a user reads."""

    detector: str
    name: str
    said: str


def findings(trial):
    """Return all findings about the disaggregated side."""
    found = []
    if trial.ended is not None:
        found.append(
            Finding(COUNTS, f"the run stops, exit code {trial.ended.exit_code}", str(trial.ended))
        )
    if trial.comparison is not None:
        for task in trial.comparison.tasks:
            found += _compared(task)
        if trial.comparison.exit_code == FAIL:
            assert any(one.name == "FAIL" for one in found)
    for run in diagnose(trial.folder).runs:
        found += [Finding(DIAGNOSE, one.rule, one.told) for one in run.findings]
    if trial.asked is not None:
        for told_apart in filter(None, (trial.asked.alone, trial.asked.in_pairs)):
            found += _attributed(told_apart, ASKED, trial)
    if (trial.folder / REPORT_FILE).exists():
        report = read_report(trial.folder)
        found += [
            Finding(COUNTS, "hidden retries", line)
            for line in report.warnings
            if "the orchestrator retried requests" in line
        ]
        for one in report.tasks:
            found += _of_run(one, trial)
    return found


def _compared(task):
    verdict = task.verdict
    if verdict.outcome == "FAIL":
        a, b = task.a.value, task.b.value
        yield Finding(
            COMPARE,
            "FAIL",
            f"FAIL: {a:.2f} -> {b:.2f}, {task.worse} turned wrong and {task.better} right",
        )
    if verdict.outcome == "ERROR":
        yield Finding(COMPARE, "ERROR", "; ".join(verdict.reasons))
    for line in task.warnings:
        if (name := line.partition(":")[0]) in NAMED:
            yield Finding(COMPARE, name, line)


def _of_run(task, trial):
    for one in task.degradations:
        yield Finding(ALARM, one.measure, describe(one))
    if task.attribution is not None:
        yield from _attributed(task.attribution, ATTRIBUTION, trial)
    result = task.result
    if result.failed:
        yield Finding(
            COUNTS, "failed", f"{result.failed} of {result.planned} failed: {dict(result.failures)}"
        )
    if again := sum(task.traffic.retries.values()):
        yield Finding(
            COUNTS,
            "asked again",
            f"{again} requests were asked again: {dict(task.traffic.retries)}",
        )
    if empty := result.outcomes.get(Outcome.EMPTY, 0):
        yield Finding(COUNTS, "empty", f"{empty} of {result.scored} answers are empty")


def _attributed(found, detector, trial):
    for row in found.rows:
        if row.accused:
            who = "" if _is_right(row.worker, trial) else ", and not the one that has the fault"
            others = f"{row.others_bad} of {row.others} of the others"
            said = (
                f"{row.role} {row.worker}: {row.bad} {row.measure} of {row.answers}, and {others}"
            )
            yield Finding(detector, f"{row.role} by {row.measure}{who}", said)
    for slow in found.times:
        if slow.slow:
            who = (
                ""
                if slow.worker == "" or _is_right(slow.worker, trial)
                else ", and not the one that has the fault"
            )
            said = told_of_slow(slow)
            yield Finding(detector, f"{said.partition(':')[0]} {slow.role}{who}", said)


def _is_right(worker, trial):
    """Return whether every part of an accused worker, or pair, has the fault."""
    return bool(trial.blamed) and all(host in worker for host in trial.blamed)
