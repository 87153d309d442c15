"""Tell which results that passed decide nothing: strict ones fail. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve_eval.report.ci.properties import compute_least_drop
from serve_eval.report.summary.figures import figure, in_points
from serve_eval.report.task_line import find_vacuous
from serve_eval.schema import Report, TaskReport, TaskResult, Verdict, VerdictOutcome

if TYPE_CHECKING:
    from serve_eval.schema import Comparison


def describe_undecided(report: Report | Comparison, most: float | None = None) -> str:
    """Return why a run that passed decides nothing, or "".

    No value could have failed it, its rule detects no drop that is possible, or only drops above
    `most` points, if its values are points.
    """
    reasons = []
    for task in report.tasks:
        result = task.result if isinstance(task, TaskReport) else task.b
        reason = find_vacuous(task.verdict) or _find_blindness(result, task.verdict, most)
        reasons += [f"{result.task}: {reason}"] if reason else []
    return f"does not decide: {'; '.join(reasons)}: ask more samples" if reasons else ""


def _find_blindness(result: TaskResult, verdict: Verdict, most: float | None) -> str:
    """Return the words for a rule that detects no drop which matters.

    `most` is in points, so it says nothing about values that are none, such as perplexities.
    """
    metric, possible = result.metric, _find_largest_drop(result, verdict)
    least = compute_least_drop(verdict, metric)
    if verdict.outcome is not VerdictOutcome.PASS or least is None:
        return ""
    unit = " points" if in_points(metric) else ""
    limit = f"detects only drops of {figure(least, metric)}{unit} or more"
    if possible is not None and least >= possible:
        return f"{limit}, and {figure(possible, metric)} are possible"
    if most is not None and unit and least > most:
        return f"{limit}, above max_detects = {most:g}"
    return ""


def _find_largest_drop(result: TaskResult, verdict: Verdict) -> float | None:
    """Return the drop from the reference to the worst value; None without a bound."""
    metric, reference = result.metric, verdict.reference
    worst = metric.lo if metric.higher_is_better else metric.hi
    if reference is None or worst is None:
        return None
    return abs(reference - metric.scale * worst)
