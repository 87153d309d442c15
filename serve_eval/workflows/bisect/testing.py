"""Test one configuration: ask until a drop beyond the margin is shown or excluded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from serve_eval.errors import EndpointError, LaunchError, PlanError
from serve_eval.schema import (
    AccuracySpec,
    BisectionResult,
    Plan,
    Report,
    Spec,
    TaskReport,
    VerdictOutcome,
)
from serve_eval.storage.file_names import BISECTION_REFERENCES
from serve_eval.workflows.bisect.reference import MODEL

EPS = 0.01
"""Probability that too many missing answers go unnoticed in a test that stops early."""
NO_SERVER = (LaunchError, EndpointError, PlanError)
"""The errors of a configuration that cannot start or serve. Everything else in its plan has been
used by the good configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
