"""Make the line about one task of a run or of a comparison. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from serve_eval.evaluation.results.degradation import what
from serve_eval.report.attribution import accusations
from serve_eval.report.counted_causes import MANY, list_counted
from serve_eval.report.one_line import OneLine, describe_drop
from serve_eval.report.summary import figures
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.schema import (
    NOT_PROVEN,
    Attribution,
    Degradation,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.judgement import Reason
from serve_eval.stats.own_noise import subtract
from serve_eval.verdicts import repaired

if TYPE_CHECKING:
    from serve_eval.schema import ComparedTask

BROKEN = (
    Reason.TOO_MANY_MISSING.value,
    Reason.MISSING_RESULTS.value,
    NOT_PROVEN,
    repaired.UNDECIDED,
)
"""Beginnings of reasons that turn an undecided verdict into an error."""
NEVER_FAILS = "so the task never fails"
"""Part of the warning of a rule that nothing fails."""
_DECIDED = (VerdictOutcome.PASS, VerdictOutcome.NOT_JUDGED, VerdictOutcome.SHARD)
"""Outcomes that need no cause."""


def make_task_line(
    task: SummaryTask,
    model: str | None,
    *,
    found: str = "",
    attribution: Attribution | None = None,
    degradations: Sequence[Degradation] = (),
    before: TaskResult | None = None,
) -> OneLine:
    """Return the line about a task.

    `found` is what a diagnosis says is the likeliest cause, if one was made. `before` is the result
    of the other side of a comparison.
    """
    verdict, result = task.verdict, task.result
    asked = verdict.outcome not in (VerdictOutcome.UNSUPPORTED, VerdictOutcome.ERROR)
    failed = verdict.outcome is VerdictOutcome.FAIL
    why = () if failed else sort_reasons(verdict.reasons)[:1]
    known = (*why, *filter(None, (found,)), *_list_causes(task, attribution, degradations, before))
    return OneLine(
        outcome=verdict.outcome.value,
        about=" ".join(filter(None, (result.task, model))),
        figures="; ".join(
            filter(
                None,
                (
                    _describe_figures(task),
                    figures.bound_next_to_value(task, brief=True),
                    find_vacuous(verdict),
                ),
            )
        ),
        counts=count_samples(result) if asked or result.scored else "",
        cause="" if verdict.outcome in _DECIDED else next(iter((*known, *verdict.reasons)), ""),
        sure=bool(why),
    )


def find_vacuous(verdict: Verdict) -> str:
    """Return the words for a PASS that no value could have turned into a FAIL."""
    vacuous = any(NEVER_FAILS in warning for warning in verdict.warnings)
    return "no value could FAIL" if vacuous and verdict.outcome is VerdictOutcome.PASS else ""


def sort_reasons(reasons: Sequence[str]) -> list[str]:
    """Return the reasons of an undecided verdict, those first that a deployment is to blame for."""
    return sorted(reasons, key=lambda reason: not reason.startswith(BROKEN))


def make_compared_line(task: ComparedTask, model: str | None, found: str = "") -> OneLine:
    """Return the line about a compared task: B against A. `found` is as in `make_task_line`."""
    summary = SummaryTask(
        result=task.b, verdict=task.verdict, names=("B", "A"), default_rule="paired"
    )
    line = make_task_line(
        summary, model, found=found, attribution=task.attributions[1], before=task.a
    )
    lost = task.a.failed or task.a.doubted
    more = f"; A: {task.a.failed} failed, {task.a.doubted} repaired" if lost else ""
    return replace(line, counts=f"{line.counts}{more}")


def count_samples(result: TaskResult) -> str:
    """Return how many samples were asked, failed and repaired."""
    asked = result.planned - result.spared
    return f"{asked:,} asked, {result.failed} failed, {result.doubted} repaired"


def split_change(
    change: float, interval: tuple[float, float] | None, *, points: bool
) -> tuple[str, ...]:
    """Return the drop or the gain in words, and the ends of its interval.

    `change` and `interval` are differences; negative is worse.
    """
    drops = change <= 0.0
    sign = -1.0 if drops else 1.0
    word = ("drop" if drops else "gain") if points else ("worse by" if drops else "better by")
    ends = () if interval is None else sorted(sign * end for end in interval)
    shown = [figures.write_figure(one + 0.0, points=points) for one in (sign * change, *ends)]
    return f"{word} {shown[0]}", *shown[1:]


def _describe_figures(task: SummaryTask) -> str:
    """Return the value against the reference, with the drop and its interval."""
    verdict, metric = task.verdict, task.result.metric
    value = figures.show_value(task)
    if value == "-":
        return ""
    reference = "" if verdict.reference is None else figures.figure(verdict.reference, metric)
    names = ("", "") if task.names[0] == "" else task.names
    change, interval = find_change(task)
    drop: tuple[str, ...] = ("",)
    if change is not None:
        drop = split_change(change, interval, points=figures.in_points(metric))
    return describe_drop(value, reference, drop[0], drop[1:], names=names)


def find_change(task: SummaryTask) -> tuple[float | None, tuple[float, float] | None]:
    """Return the change and its interval, of the pairs or else of the value.

    A reference whose number of samples is not known is taken as exact. Negative is worse.
    """
    verdict, metric = task.verdict, task.result.metric
    paired, reference = verdict.paired, verdict.reference
    if paired is not None and paired.interval is not None:
        return paired.difference, paired.interval
    change, own = figures.change(task), task.result.interval
    sign = 1.0 if metric.higher_is_better else -1.0
    if change is None or reference is None or own is None:
        return (None if change is None else sign * change), None
    ends = subtract(reference + change, own, reference, verdict.reference_interval)
    low, high = sorted(sign * end for end in ends)
    return sign * change, (low, high)


def _list_causes(
    task: SummaryTask,
    attribution: Attribution | None,
    degradations: Sequence[Degradation],
    before: TaskResult | None,
) -> Iterator[str]:
    """Yield what the report itself knows of causes, the most telling first."""
    result, verdict = task.result, task.verdict
    if attribution is not None:
        yield from accusations(attribution)
    for one in degradations:
        shares = f"{one.before:.0%} before request {one.since}, {one.after:.0%} from it on"
        yield f"{what(one)}: {shares}"
    planned = max(1, result.planned)
    if result.failures and result.failed > MANY * planned:
        kinds = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in result.failures.items())
        yield f"no answer: {kinds}"
    yield from list_counted(result, verdict, before)
