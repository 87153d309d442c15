"""Test one configuration until a drop beyond the margin is shown or excluded."""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from serve_eval.errors import EndpointError, LaunchError, PlanError, RunFolderError
from serve_eval.evaluation.launch import Launching, count_gpus
from serve_eval.evaluation.shared_server import SharedServer, server_key
from serve_eval.evidence.answer_pairs import read_task
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import (
    MEAN,
    AccuracySpec,
    BisectionResult,
    Endpoint,
    Plan,
    Report,
    Spec,
    TaskReport,
    VerdictOutcome,
)
from serve_eval.stats.classic import classic_test
from serve_eval.storage.file_names import BISECTION_REFERENCES, SERVERS
from serve_eval.storage.json_files import write_private
from serve_eval.verdicts import reference_samples, references
from serve_eval.verdicts.reference_samples import SampleScores

EPS = 0.01
"""Probability that too many missing answers go unnoticed in a test that stops early."""
NO_SERVER = (LaunchError, EndpointError, PlanError)
"""The errors of a configuration that cannot start or serve. Everything else in its plan has been
used by the good configuration."""


@freeze
class StepOutcome:
    """The result of a test: see BisectionStep. `task` is the one that fell most, if any is worse.

    `margin` is half of its drop, in points; of the same, the drop that is excluded.
    """

    result: BisectionResult
    asked: int = 0
    difference: float | None = None
    reason: str = ""
    task: str | None = None
    margin: float | None = None


def plan_reference(plan: Plan) -> Plan:
    """Return the plan by which the good configuration is asked first, in full."""
    return replace(
        plan,
        no_reference=True,
        early_stop=None,
        accept_identical=False,
        verdict=Spec(name="classic"),
        repeats=1,
        repeats_of={},
    )


def plan_test(
    plan: Plan, good: Plan, tasks: tuple[str, ...], margin: float | None, out: Path
) -> Plan:
    """Return the plan that tests a configuration against the good one's answers.

    It asks what the good one was asked, of these tasks. Without a margin it asks everything, since
    a drop that is measured after an early stop looks larger than it is.
    """
    known = replace(good, launcher=plan.launcher, model=plan.model)
    known = replace(known, connection=plan.connection, limits=plan.limits)
    known = plan_reference(known)
    judged = (
        Spec(name="paired")
        if margin is None
        else Spec(name="noninferiority", options={"margin": margin})
    )
    return replace(
        known,
        tasks=tuple(spec for spec in good.tasks if spec.name in tasks),
        no_reference=False,
        allow_missing_reference=False,
        verdict=judged,
        early_stop=None if margin is None else EPS,
        references_dir=str((out / BISECTION_REFERENCES).absolute()),
        reference_model=MODEL,
        accuracy_spec=AccuracySpec(),
    )


def read_result(
    report: Report, *, level: float | None = None, usual: Mapping[str, float] | None = None
) -> StepOutcome:
    """Return the result of a finished run.

    Worse: one task is. Same: every task is. With a `level`, the run had no margin: a drop is shown
    by its p-value at that level, and it is excluded down to the `usual` margin of each task.
    """
    margins = usual or {}
    found = {
        task.result.task: _judge(task)
        if level is None
        else _judge_in_full(task, level, margins.get(task.result.task, 0.0))
        for task in report.tasks
    }
    asked = sum(task.result.scored + task.result.failed for task in report.tasks)
    drops = {task.result.task: _difference(task) for task in report.tasks}
    worse = [name for name, result in found.items() if result is BisectionResult.WORSE]
    known = {name: drop for name, drop in drops.items() if drop is not None}
    lowest = min(known, key=known.__getitem__) if known else None
    difference = None if lowest is None else known[lowest]
    if worse:
        task = min(worse, key=lambda name: known.get(name, 0.0))
        drop = known.get(task)
        half = None if drop is None else abs(drop) / 2
        return StepOutcome(
            result=BisectionResult.WORSE, asked=asked, difference=drop, task=task, margin=half
        )
    if all(result is BisectionResult.SAME for result in found.values()):
        return StepOutcome(
            result=BisectionResult.SAME,
            asked=asked,
            difference=difference,
            margin=max(margins.values(), default=None),
        )
    reasons = dict.fromkeys(line for task in report.tasks for line in task.verdict.reasons)
    return StepOutcome(
        result=BisectionResult.UNDECIDED,
        asked=asked,
        difference=difference,
        reason="; ".join(reasons),
    )


def read_failure(error: Exception) -> StepOutcome:
    """Return the result of a configuration that cannot start or serve."""
    first = str(error).strip().partition("\n")[0]
    return StepOutcome(result=BisectionResult.NO_START, reason=first)


def _judge(task: TaskReport) -> BisectionResult:
    known = {
        VerdictOutcome.FAIL: BisectionResult.WORSE,
        VerdictOutcome.PASS: BisectionResult.SAME,
    }
    return known.get(task.verdict.outcome, BisectionResult.UNDECIDED)


def _judge_in_full(task: TaskReport, level: float, margin: float) -> BisectionResult:
    paired = task.verdict.paired
    if paired is None or task.verdict.outcome is VerdictOutcome.ERROR:
        return BisectionResult.UNDECIDED
    if paired.p is not None and paired.p <= level and paired.difference < 0.0:
        return BisectionResult.WORSE
    same = paired.lower is not None and paired.lower > -margin
    few = "too_many_missing" in paired.reasons
    return BisectionResult.SAME if same and not few else BisectionResult.UNDECIDED


def _difference(task: TaskReport) -> float | None:
    """Return the difference in points, negative if worse; estimated after an early stop."""
    verdict = task.verdict
    if verdict.early is None or not verdict.early.stopped:
        return None if verdict.paired is None else verdict.paired.difference
    if verdict.early.estimate is None or verdict.reference is None:
        return None
    sign = 1.0 if task.result.metric.higher_is_better else -1.0
    return sign * (verdict.early.estimate - verdict.reference)


MODEL = "the good configuration"
"""The name under which every configuration looks its reference up."""


def check_tasks(prepared: Sequence[PreparedTask]) -> None:
    """Raise PlanError for tasks whose scores cannot be compared prompt by prompt."""
    problems = []
    for p in prepared:
        name, metric = p.task.name, p.task.metric
        if p.task.aggregation is not MEAN:
            problems.append(f"{name}: its value is the {p.task.aggregation.name}, not a mean")
        elif metric.lo is None or metric.hi is None:
            problems.append(f"{name}: {metric.name} has no range, which an early stop needs")
    files = Counter(p.task.reference_file for p in prepared)
    problems += [
        f"{p.task.name}: shares the reference file {p.task.reference_file} with another task"
        for p in prepared
        if files[p.task.reference_file] > 1
    ]
    if problems:
        raise PlanError(problems, hint="Leave these tasks out: --tasks A,B.")


def list_usual_margins(prepared: Sequence[PreparedTask]) -> dict[str, float]:
    """Return the drop in points that the classic test of each task detects, at its own alpha."""
    found = {}
    for p in prepared:
        h = p.hypothesis
        limit = classic_test(len(p.dataset.samples), 0.0, h.sigma, h.alpha, h.beta, True).threshold
        found[p.task.name] = abs(limit)
    return found


def write_references(
    out_dir: Path, run: Path, report: Report, prepared: Sequence[PreparedTask], alpha: float
) -> None:
    """Write a reference of each task, for tests at this `alpha`.

    Raises RunFolderError if a score is missing: a failure is no wrong answer.
    """
    folder = out_dir / BISECTION_REFERENCES
    for p in prepared:
        known = read_task(run, report, p.task.name).lines[0]
        found = [known.get(sample.id) for sample in p.dataset.samples]
        scores = array("d", (math.nan if one is None else one.value for one in found))
        if missing := sum(map(math.isnan, scores)):
            raise RunFolderError(
                f"the good configuration has no answer or no score for {missing} of"
                f" {len(scores)} samples of {p.task.name}",
                hint=f"Run the same command again to ask them again; {run} keeps the others.",
            )
        write_private(
            _create(folder) / f"{p.task.reference_file}.yaml",
            msgspec.json.format(msgspec.json.encode({MODEL: [_entry(folder, p, scores, alpha)]}))
            + b"\n",
        )


def _entry(folder: Path, p: PreparedTask, scores: array[float], alpha: float) -> dict[str, Any]:
    metric, n = p.task.metric, len(scores)
    assert metric.lo is not None
    assert metric.hi is not None
    place = Path(f"{p.task.reference_file}.json")
    keys = b"".join(map(sample_key, p.dataset.samples))
    kept = SampleScores(task=p.task.name, lo=metric.lo, hi=metric.hi, keys=keys, runs=(scores,))
    sha256 = reference_samples.write(folder / place, kept)
    value = metric.scale * math.fsum(scores) / n
    variance = math.fsum((metric.scale * one - value) ** 2 for one in scores) / n
    return {
        references.value_key(metric.name): value,
        "alpha": alpha,
        "runs": {
            "values": [round(value, 6)],
            "n": n,
            "sigma": round(math.sqrt(variance), 3),
            "samples": place.as_posix(),
            "sha256": sha256,
        },
        "protocol": dict(p.task.protocol),
        "source": "serve-eval bisect",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _create(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be used as a folder: {error.strerror}") from error
    return folder


class HeldServer:
    """The server of the latest configuration, with the starts and GPU seconds of all so far.

    `gpus_known` is False once a server started of which the launcher does not know the GPUs. A
    running endpoint is no start.
    """

    def __init__(
        self, folder: Path, launching: Launching, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._launching, self._clock = folder, launching, clock
        self._server: SharedServer | None = None
        self.key: str | None = None
        self.starts, self.gpus_known = 0, True
        self._ended_gpu_s, self._gpus, self._began_s = 0.0, 0, 0.0

    @property
    def gpu_s(self) -> float:
        """The GPU seconds of all servers so far, also of the one that is running."""
        return self._ended_gpu_s + self._gpus * (self._clock() - self._began_s)

    async def __aenter__(self) -> HeldServer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop the server if one is running."""
        server, self._server, self.key = self._server, None, None
        if server is not None:
            await server.stop()

    async def take(self, plan: Plan) -> SharedServer:
        """Return the server for a plan, which starts when the first request is sent."""
        key = server_key(plan)
        if self._server is None or key != self.key:
            await self.stop()
            self._server, self.key = SharedServer([plan], self._new_folder(), self._launch), key
        return self._server

    def _new_folder(self) -> Path:
        number = 1
        while (folder := self._folder / SERVERS / f"{number:02d}").exists():
            number += 1
        return folder

    @asynccontextmanager
    async def _launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        if plan.launcher.name == "external":
            async with self._launching(plan, prepared, folder) as endpoint:
                yield endpoint
            return
        gpus = count_gpus(plan)
        self.starts += 1
        self._gpus, self._began_s = gpus or 0, self._clock()
        self.gpus_known = self.gpus_known and gpus is not None
        try:
            async with self._launching(plan, prepared, folder) as endpoint:
                yield endpoint
        finally:
            self._ended_gpu_s, self._gpus = self.gpu_s, 0
