"""Judge a task of which a limit of the run left samples unasked.

The asked samples are a prefix of a random order, so their mean estimates the value of the whole
run. That the mean is above the threshold does not decide the whole run, and a test after every
session of a resumed run would exceed its level. The outcome is therefore INCONCLUSIVE, with the
drop that the asked samples can detect. It is PASS or FAIL only if it is certain: every value that
the unasked samples allow is on the same side of the threshold, or McNemar's test proves a drop with
all of them at their best (its p grows with each pair that only the candidate has right, so that no
other answers have a larger one). An early stop may decide before the limit is reached, with its own
guarantee. A task of which nothing was asked is NOT ASKED.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from serve_eval.evaluation.task_run import TaskRun
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import (
    CERTAIN,
    MEAN,
    BudgetEnd,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.intervals import INTERVAL_ALPHA, wilson
from serve_eval.verdicts import validity
from serve_eval.verdicts.reference_noise import USUAL_FLIP_RATE, measure_noise
from serve_eval.verdicts.rules import _classic


def find_end(task_run: TaskRun, ended_by: str, order: Sequence[int] | None) -> BudgetEnd | None:
    """Return the state of a task if the limit `ended_by` left samples of it unasked, else None.

    `order` is the random order of all its samples (None: they were asked in another one).
    """
    table, prepared = task_run.accumulator, task_run.prepared
    planned = len(table.samples)
    unasked = sum(table.score(i) is None for i in table.list_unanswered())
    if not ended_by or not unasked:
        return None
    places = () if order is None else order[: table.count_completed(order)]
    scores = [score for i in places if (score := table.score(i)) is not None]
    known = [score for score in scores if not math.isnan(score)]
    prompts = {i % (planned // table.repeats) for i in places}
    units = len({table.samples[i].group or i for i in prompts})
    plain = prepared.task.aggregation is MEAN and bool(known)
    mean = math.fsum(known) / len(known) if plain else None
    metric = prepared.task.metric
    interval = None
    if mean is not None and metric.lo is not None and metric.hi is not None:
        span, lo = metric.hi - metric.lo, metric.lo
        size = max(1, min(units, len(known)))
        low, high = wilson(size * (mean - lo) / span, size, INTERVAL_ALPHA)
        interval = metric.scale * (lo + span * low), metric.scale * (lo + span * high)
    return BudgetEnd(
        ended_by=ended_by,
        planned=planned,
        asked=len(places),
        missing=len(scores) - len(known),
        unasked=unasked,
        estimate=None if mean is None else metric.scale * mean,
        interval=interval,
        detects=find_detected(prepared, len(known), table.repeats) if plain else None,
        whole_detects=find_detected(prepared, planned, table.repeats),
    )


def judge_asked(
    prepared: PreparedTask,
    reference: Reference,
    result: TaskResult,
    end: BudgetEnd,
    bounds: tuple[float, float] | None,
) -> Verdict:
    """Return the verdict of a task that a limit ended; it has an estimate, but no value.

    `bounds` hold every value in points that the unasked and the missing samples allow (None: they
    are not known, or the rule has no threshold).
    """
    base = _classic.frame(result, reference, prepared.hypothesis)
    rule = prepared.rule.name
    decision = Decision.UNDECIDED
    if rule == "classic" and bounds is not None and base.threshold is not None:
        better = result.metric.higher_is_better
        if reference.higher_is_better is not None:
            better = reference.higher_is_better
        decision = _classic.decide_result(result, bounds, base.threshold, higher_is_better=better)
    warnings = base.warnings if rule == "classic" else _classic.leave_out_threshold(base)
    said = describe_end(end)
    if not result.scored and end.missing:
        why = f"nothing_scored: none of the {end.missing:,} samples asked has an answer; {said}"
        return replace(base, outcome=VerdictOutcome.ERROR, rule=rule, budget=end, reasons=(why,))
    if decision is not Decision.UNDECIDED and not validity.objections(
        replace(result, planned=max(1, end.asked), failed=end.missing, bounds=bounds)
    ):
        low, high = bounds or (0.0, 0.0)
        sure = (
            f"{said}; the verdict is certain: all samples give a value of {low:.1f} to {high:.1f}"
        )
        return replace(
            base,
            outcome=VerdictOutcome(decision.value),
            rule=rule,
            evaluated=None,
            budget=end,
            warnings=(*warnings, sure),
        )
    whole = end.unasked == end.planned
    return replace(
        base,
        outcome=VerdictOutcome.NOT_ASKED if whole else VerdictOutcome.INCONCLUSIVE,
        rule=rule,
        evaluated=None,
        budget=end,
        reasons=(f"{end.ended_by}: {said}", *_describe_power(end, rule)),
        warnings=warnings,
    )


def may_prove(prepared: PreparedTask, end: BudgetEnd) -> bool:
    """Return True if the rule of a task compares pairs, and some samples have an answer."""
    asked = end.unasked + end.missing < end.planned
    return asked and load_verdict_rule(prepared.rule.name).early_stop == "pairs"


def take_proven(judged: Verdict, pairs: Verdict, end: BudgetEnd) -> Verdict:
    """Return the FAIL of the rule of pairs if no unasked sample can change it, else `judged`.

    `pairs` is its verdict with the unasked samples missing, so that its p is the largest possible.
    """
    found = pairs.paired
    if pairs.outcome is not VerdictOutcome.FAIL or found is None:
        return judged
    if not found.method.startswith("mcnemar") or found.inflation != 1.0:
        return judged
    sure = (
        f"{describe_end(end)}; the verdict is certain: with the others at their best, p is"
        f" {found.p:.2g}"
    )
    return replace(pairs, evaluated=None, budget=end, other=None, warnings=(*pairs.warnings, sure))


def note_end(verdict: Verdict, end: BudgetEnd) -> Verdict:
    """Return a verdict with the end of the run, which those by no rule do not have yet."""
    if verdict.budget is not None:
        return verdict
    said = f"{end.ended_by}: {describe_end(end)}"
    return replace(verdict, budget=end, evaluated=None, warnings=(said, *verdict.warnings))


def describe_end(end: BudgetEnd) -> str:
    """Return how far a task was asked when the limit ended the run."""
    ended = "a certain FAIL" if end.ended_by == CERTAIN else "the limit"
    if end.unasked == end.planned:
        return f"none of the {end.planned:,} samples was asked before {ended} ended the run"
    order = (
        "" if end.asked else " in no common random order, so that they say nothing of the others"
    )
    missing = f", {end.missing:,} of them without an answer" if end.missing else ""
    return (
        f"{ended} ended the run after {end.planned - end.unasked:,} of {end.planned:,} samples"
        f"{order}{missing}; {end.unasked:,} were not asked"
    )


def _describe_power(end: BudgetEnd, rule: str) -> Sequence[str]:
    """Return what the samples asked can detect, compared with all samples."""
    if not end.asked or (end.detects is None and end.whole_detects is None):
        return ()
    power = f"{end.power:.0%}"
    here = (
        "no drop is detected"
        if end.detects is None
        else f"only drops of {end.detects:.1f} points or more are detected"
    )
    whole = (
        ""
        if end.whole_detects is None
        else f"; with all {end.planned:,}, those of {end.whole_detects:.1f} points"
    )
    return (f"with these samples {here} with {power} probability ({rule}){whole}",)


def find_detected(prepared: PreparedTask, samples: int, repeats: int) -> float | None:
    """Return the drop in points that the rule of a task detects with 80 % probability.

    `samples` are those asked, each repeat one. The flip rate is that of the reference's runs, or
    the usual one. None: no drop is, or the rule is none of ours.
    """
    h, reference = prepared.hypothesis, prepared.reference
    if reference is None or samples < 1 or h.num_samples is None:
        return None
    rule = load_verdict_rule(prepared.rule.name)
    if rule.early_stop != "pairs":
        n = min(samples, h.num_samples) if repeats == 1 else samples
        return classic_test(n, reference.value, h.sigma, h.alpha, h.beta).theta
    from serve_eval.stats.planning import find_least_drop

    noise = measure_noise(prepared.dataset, reference)
    flips, effect, runs = USUAL_FLIP_RATE, 1.0, 1
    if noise is not None:
        effect, runs = noise.effect, noise.runs
        flips = USUAL_FLIP_RATE if noise.flip_rate is None else noise.flip_rate
    prompts = samples / repeats / effect
    both = max(flips, 1.0 / max(1.0, samples)) * (1.0 / runs + 1.0 / repeats) / 2.0
    drop = find_least_drop(max(1, round(prompts)), both, h.alpha, 0.2)
    return None if drop is None else abs(prepared.task.metric.scale) * drop
