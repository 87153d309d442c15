"""Make the line about one task, with its figures and whether its result decides anything.

Wrong answers that are cut, empty or unreadable are a cause of a lower value only where the
reference, or the other side, has fewer of them. Of a published value, all wrong answers are known
by number: no more of them can have the property.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from serve_eval.evaluation.results.degradation import what
from serve_eval.report.attribution import accusations
from serve_eval.report.ci_result import OneLine, describe_drop
from serve_eval.report.summary import figures
from serve_eval.report.summary.figures import SummaryTask, figure, in_points
from serve_eval.schema import (
    NOT_PROVEN,
    Attribution,
    Cut,
    Degradation,
    Metric,
    OtherRule,
    Outcome,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.intervals import subtract
from serve_eval.stats.judgement import Reason
from serve_eval.stats.planning import FLIP_RATE, compute_fail_power, find_least_drop
from serve_eval.verdicts import repaired
from serve_eval.verdicts.below_reference import count_wrong_at_most

if TYPE_CHECKING:
    from serve_eval.schema import ComparedTask, Comparison


BROKEN = (
    Reason.TOO_MANY_MISSING.value,
    Reason.MISSING_RESULTS.value,
    NOT_PROVEN,
    repaired.UNDECIDED,
)
"""Beginnings of reasons that turn an undecided verdict into an error."""
NEVER_FAILS = "so the task never fails"
"""Part of the warning of a rule that nothing fails."""
_DECIDED = (
    VerdictOutcome.PASS,
    VerdictOutcome.PASS_BY_IDENTITY,
    VerdictOutcome.NOT_JUDGED,
    VerdictOutcome.SHARD,
)
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
        verdict.outcome.value,
        " ".join(filter(None, (result.task, model))),
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


MANY = 0.05
"""Share of the samples from which an ending is a likely cause of a bad value."""
_AT_LIMIT = "cut off at max_tokens"
_SILENT = (
    "cut off by a stop string",
    "ended within the reasoning",
    "empty",
    "unreadable",
)
"""Properties of answers in which no result was found, so that each of them is wrong."""


def list_counted(result: TaskResult, verdict: Verdict, before: TaskResult | None) -> Iterator[str]:
    """Yield the property of which there is the largest surplus, if it is large.

    `before` is the result of the side to compare with (None: the reference of the verdict).
    """
    planned, counts = max(1, result.planned), _count(result)
    if before is None:
        there = _find_most(result, verdict)
    else:
        share = planned / max(1, before.planned)
        there = {name: n * share for name, n in _count(before).items()}
    surplus = {name: counts[name] - n for name, n in there.items()}
    if result.doubted:
        surplus[_REPAIRED] = result.doubted
        counts[_REPAIRED] = result.doubted
    if not surplus:
        return
    most = max(surplus, key=lambda name: surplus[name])
    if surplus[most] > MANY * planned:
        yield f"{counts[most]} of {result.planned} answers {most}"


_REPAIRED = "repaired, so that their first answers are unknown"
_BY_WINDOW = "cut off by the server's window"


def _count(result: TaskResult) -> dict[str, float]:
    return {
        _AT_LIMIT: result.cut.get(Cut.MAX_TOKENS, 0),
        _BY_WINDOW: result.cut.get(Cut.WINDOW, 0),
        "cut off by a stop string": result.cut.get(Cut.STOP_STRING, 0),
        "ended within the reasoning": result.stopped_in_reasoning,
        "looping": result.looping,
        "empty": result.outcomes.get(Outcome.EMPTY, 0),
        "unreadable": result.unparsed,
    }


def _find_most(result: TaskResult, verdict: Verdict) -> Mapping[str, float]:
    """Return how many answers of the reference have a property at most, as far as that is known."""
    found: dict[str, float] = {}
    effect = verdict.cut
    if effect is not None and effect.reference_cut is not None and effect.reference_answers:
        cut = effect.reference_cut * result.planned / effect.reference_answers
        found = {_AT_LIMIT: cut, _BY_WINDOW: cut}
    if verdict.reference is None:
        return found
    wrong = count_wrong_at_most(result.metric, verdict.reference, result.planned, graded=False)
    return found if wrong is None else {**dict.fromkeys(_SILENT, wrong), **found}


def list_figures(task: SummaryTask, line: OneLine) -> Iterator[tuple[str, str]]:
    """Yield each figure by its name, as far as it is known; `line` has the likeliest cause.

    Of a comparison, `value` is that of B and `reference` that of A. `drop` is that on the same
    prompts if they are paired; a gain is negative.
    """
    result, verdict = task.result, task.verdict
    change, ends = find_change(task)
    figures = {
        "value": verdict.evaluated,
        "reference": verdict.reference,
        "threshold": verdict.threshold,
        "drop": None if change is None else 0.0 - change,
        "p": None if verdict.paired is None else verdict.paired.p,
        "detects": compute_least_drop(verdict, result.metric),
    }
    spans = {
        "interval_95": result.interval,
        "drop_95": None if ends is None else (0.0 - ends[1], 0.0 - ends[0]),
    }
    yield "outcome", verdict.outcome.value
    yield "rule", verdict.rule
    yield from ((name, f"{value:.6g}") for name, value in figures.items() if value is not None)
    yield from ((name, f"{e[0]:.6g} {e[1]:.6g}") for name, e in spans.items() if e is not None)
    yield "samples", str(result.planned)
    yield "failed", str(result.failed)
    yield "repaired", str(result.doubted)
    yield "lost_with_server", str(result.restarted)
    yield "truncated", str(result.truncated)
    if result.looping:
        yield "looping", str(result.looping)
    if line.cause and not line.sure:
        yield "likely", line.cause


def list_other(other: OtherRule | None) -> dict[str, str]:
    """Return the other rule and its outcome as properties."""
    return {} if other is None else {"other_rule": other.rule, "other_outcome": other.outcome.value}


def compute_least_drop(verdict: Verdict, metric: Metric) -> float | None:
    """Return the least drop of the value that the rule fails with a probability of 1 - beta.

    That of the paired rule is planned at the flip rate of `serve-eval references power` and its
    margin, for points. None: the rule has no such figure, or it fails no drop so often.
    """
    if verdict.rule == "classic":
        return verdict.theta
    pairs = verdict.paired
    if verdict.rule != "paired" or pairs is None or not pairs.pairs or verdict.alpha is None:
        return None
    if not in_points(metric):
        return None
    beta = 0.2 if verdict.beta is None else verdict.beta
    fail = partial(compute_fail_power, margin=pairs.margin / 100.0)
    independent = max(1, round(pairs.pairs / pairs.design_effect))
    drop = find_least_drop(independent, FLIP_RATE, verdict.alpha, beta, fail)
    return None if drop is None else 100.0 * drop


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
