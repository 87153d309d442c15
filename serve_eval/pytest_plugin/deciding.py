"""Tell which runs that passed decide nothing, and which runs without a verdict a test may judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.report.ci import CiCase
    from serve_eval.schema import Report, TaskReport


def describe_undecided(report: Report, most: float | None) -> str:
    """Return why a run that passed decides nothing, or "".

    No value could have failed it, its rule detects no drop that is possible, or only drops above
    `most` points.
    """
    from serve_eval.report.task_line import find_vacuous

    told = []
    for task in report.tasks:
        said = find_vacuous(task.verdict) or _find_blindness(task, most)
        told += [f"{task.result.task}: {said}"] if said else []
    return f"does not decide: {'; '.join(told)}: ask more samples" if told else ""


def _find_blindness(task: TaskReport, most: float | None) -> str:
    """Return the words for a rule that detects no drop which matters."""
    from serve_eval.report.ci.of_report import compute_least_drop
    from serve_eval.schema import VerdictOutcome

    verdict, possible = task.verdict, _find_largest_drop(task)
    if verdict.outcome is not VerdictOutcome.PASS:
        return ""
    least = compute_least_drop(verdict)
    if least is None:
        return ""
    if possible is not None and least >= possible:
        return f"detects only drops of {least:.1f} points or more, and {possible:.1f} are possible"
    if most is not None and least > most:
        return f"detects only drops of {least:.1f} points or more, above max_detects = {most:g}"
    return ""


def _find_largest_drop(task: TaskReport) -> float | None:
    """Return the drop from the reference to the worst value, in points; None without a bound."""
    metric, reference = task.result.metric, task.verdict.reference
    worst = metric.lo if metric.higher_is_better else metric.hi
    if reference is None or worst is None:
        return None
    return abs(reference - metric.scale * worst)


def pass_unjudged(report: Report, cases: list[CiCase]) -> list[CiCase]:
    """Return the cases of a run that its test judges itself, since it asked for no reference.

    They pass, unless too many answers are missing: those are errors, as under a verdict.
    """
    return [*_list_unjudged(report, cases), *cases[len(report.tasks) :]]


def _list_unjudged(report: Report, cases: list[CiCase]) -> Iterator[CiCase]:
    from serve_eval.report.ci import CiState
    from serve_eval.schema import VerdictOutcome
    from serve_eval.verdicts.validity import objections

    for task, case in zip(report.tasks, cases, strict=False):
        if task.verdict.outcome is not VerdictOutcome.NO_REFERENCE or case.line is None:
            yield case
        elif why := objections(task.result):
            line = replace(case.line, outcome="ERROR", cause=why[0], sure=True)
            yield replace(case, state=CiState.ERROR, line=line)
        else:
            yield replace(case, state=CiState.PASSED)
