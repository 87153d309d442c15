"""The classic rule as the other rules use it: outcome by the threshold, and implied margin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from serve_eval.schema import (
    MEAN,
    Hypothesis,
    Metric,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.verdicts import few_samples, validity

WIDE_THETA = 15.0
"""Minimum detectable effect, in points, above which a verdict carries a warning."""
NO_PAIRS = "no_pairs: there is no score to pair with"
"""Reason of a paired rule that has no pairs, unless more is known."""
_DETECTS, _SET, _ZERO = (
    "the classic rule detects only drops of",
    "the threshold is",
    "the registered reference is 0",
)
_OF_THRESHOLD = (_DETECTS, _SET, _ZERO)
"""Beginnings of warnings about the threshold, with which a rule of pairs does not judge."""


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    *,
    max_missing: float,
) -> Verdict:
    """Return the verdict of one task by the classic rule.

    `hypothesis` has every override applied and its `num_samples` set, which is the n of the
    formula. Missing answers bound the value from both sides. The outcome is PASS or FAIL only if
    both bounds agree and at most `max_missing` of the planned samples are missing, else
    INCONCLUSIVE. It is ERROR if nothing was scored.
    """
    base = frame(result, reference, hypothesis)
    better = (
        result.metric.higher_is_better
        if reference.higher_is_better is None
        else reference.higher_is_better
    )
    threshold = base.threshold
    assert threshold is not None
    reasons = validity.objections(result, max_missing)
    decision = (
        decide_result(result, result.bounds, threshold, higher_is_better=better)
        if result.bounds is not None
        else Decision.UNDECIDED
    )
    if result.scored == 0:
        outcome = VerdictOutcome.ERROR
    elif reasons or decision is Decision.UNDECIDED:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = reasons or [_describe_straddling(result, threshold)]
        if decision is Decision.FAIL:
            reasons.append("the value fails the threshold even if every missing answer is right")
    else:
        outcome = VerdictOutcome(decision.value)
    return replace(base, outcome=outcome, reasons=tuple(reasons))


def decide_result(
    result: TaskResult, bounds: tuple[float, float], threshold: float, *, higher_is_better: bool
) -> Decision:
    """Return the decision of a threshold on bounds of a task's value, in exact arithmetic."""
    samples = result.planned if result.aggregation == MEAN.name else 1
    return decide(bounds, threshold, higher_is_better, samples=samples, scale=result.metric.scale)


def frame(result: TaskResult, reference: Reference, hypothesis: Hypothesis) -> Verdict:
    """Return a verdict with all figures that are known before the decision.

    Its outcome has no meaning.
    """
    if hypothesis.num_samples is None:
        raise ValueError("the hypothesis has no num_samples")
    better = (
        result.metric.higher_is_better
        if reference.higher_is_better is None
        else reference.higher_is_better
    )
    test = classic_test(
        hypothesis.num_samples,
        reference.value,
        hypothesis.sigma,
        hypothesis.alpha,
        hypothesis.beta,
        better,
    )
    explicit = reference.threshold is not None
    threshold = reference.threshold if reference.threshold is not None else test.threshold
    return Verdict(
        task=result.task,
        outcome=VerdictOutcome.INCONCLUSIVE,
        rule="classic",
        evaluated=result.value,
        bounds=result.bounds,
        reference=reference.value,
        reference_interval=few_samples.find_interval(result, reference),
        threshold=threshold,
        theta=None if explicit else test.theta,
        alpha=hypothesis.alpha,
        beta=hypothesis.beta,
        sigma=hypothesis.sigma,
        num_samples=hypothesis.num_samples,
        warnings=(
            *_warnings(reference, hypothesis, None if explicit else test.theta, better=better),
            *_about_range(result.metric, threshold, reference, better=better),
        ),
    )


def margin(verdict: Verdict) -> float:
    """Return the distance of the threshold from the reference, in points.

    A drop of this size fails by the classic rule.
    """
    assert verdict.threshold is not None
    assert verdict.reference is not None
    return abs(verdict.threshold - verdict.reference)


def build_undecided(base: Verdict, rule: str, *, paired: bool) -> Verdict:
    """Return the verdict of a paired rule that has nothing to compare.

    It is ERROR if nothing was scored, else INCONCLUSIVE.
    """
    error = base.outcome is VerdictOutcome.ERROR
    reasons = base.reasons if paired else (*base.reasons, NO_PAIRS)
    outcome = VerdictOutcome.ERROR if error else VerdictOutcome.INCONCLUSIVE
    return replace(base, outcome=outcome, rule=rule, reasons=reasons)


def leave_out_threshold(verdict: Verdict) -> tuple[str, ...]:
    """Return the warnings of a verdict without those about the threshold, for rules of pairs."""
    return tuple(one for one in verdict.warnings if not one.startswith(_OF_THRESHOLD))


def _describe_straddling(result: TaskResult, threshold: float) -> str:
    if result.bounds is None:
        return "missing_results: the value has no bounds without the first answers that are unknown"
    low, high = result.bounds
    return (
        f"missing_results: with {result.failed} missing answers the value is {low:.3f} to"
        f" {high:.3f}, on both sides of the threshold {threshold:.3f}"
    )


def _warnings(
    reference: Reference, hypothesis: Hypothesis, theta: float | None, *, better: bool
) -> list[str]:
    warnings = []
    if reference.value == 0.0 and better:
        warnings.append(f"{_ZERO}, so the task never fails")
    if theta is not None and theta > WIDE_THETA:
        power = f"{1.0 - hypothesis.beta:.0%}"
        warnings.append(f"{_DETECTS} {theta:.1f} points or more, with {power} probability")
    if theta is None:
        warnings.append(f"{_SET} set in the reference file, not computed")
    if reference.old:
        warnings.append(f"the reference comes from an older file of its source: {reference.source}")
    return warnings


def _about_range(
    metric: Metric, threshold: float, reference: Reference, *, better: bool
) -> Iterator[str]:
    """Yield a warning if every value of the metric passes the threshold, or none."""
    low, high = (None if end is None else metric.scale * end for end in (metric.lo, metric.hi))
    worst, best, sign = (low, high, 1.0) if better else (high, low, -1.0)
    shown = f"{_SET} {threshold:.3f}, and {metric.name} is"
    if worst is not None and sign * (threshold - worst) <= 0.0 and reference.value != worst:
        limit = f"{worst:g} or {'more' if better else 'less'}"
        yield f"{shown} {limit}, so the task never fails: ask more samples"
    elif best is not None and sign * (threshold - best) > 0.0:
        limit = f"{best:g} or {'less' if better else 'more'}"
        yield f"{shown} {limit}, so the task always fails: correct the threshold"
