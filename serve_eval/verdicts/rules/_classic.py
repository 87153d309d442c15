"""Judge by the threshold of the classic rule, also runs that may stop early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from serve_eval.schema import (
    MEAN,
    EarlyStop,
    Hypothesis,
    Metric,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import reference_noise, validity

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
        reference_interval=reference_noise.find_interval(result, reference),
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


def find_margin(verdict: Verdict) -> float:
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


ASSUMES = (
    "assumes that the remaining samples would score like those asked: an endpoint that degrades"
    " after the stop goes unnoticed"
)


def judge_decided(
    result: TaskResult, reference: Reference, hypothesis: Hypothesis, early: EarlyStop
) -> Verdict:
    """Return the verdict of a task that stopped early: it has an estimate, but no value."""
    base = frame(result, reference, hypothesis)
    outcome = VerdictOutcome(str(early.decision))
    if early.alpha is None:
        promise = (
            "the verdict differs from that of all samples with a probability of at most"
            f" {early.eps:g}"
        )
    else:
        did = "excluded" if outcome is VerdictOutcome.PASS else "shown"
        promise = (
            f"a drop of {early.margin:.4g} points is {did} at {1.0 - early.alpha:.1%}"
            f" (the looks use alpha {early.alpha:g} of {hypothesis.alpha:g})"
        )
    warning = (
        f"stopped early after {early.looked_at} of {early.planned} samples in random order:"
        f" {promise}; the value is partial; {ASSUMES}"
    )
    return replace(
        base,
        outcome=outcome,
        rule=early.rule,
        evaluated=None,
        early=early,
        warnings=(*base.warnings, warning),
    )


def judge_after_looks(
    judge: Callable[..., Verdict],
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None,
    *,
    margin: object,
) -> Verdict:
    """Return the verdict, by a paired rule, of a run that its early looks did not stop.

    The test uses the alpha that the looks left. The classic figures (threshold, theta, and the
    margin if `margin`, that of the rule, is None) remain those of the whole alpha.
    """
    left = replace(hypothesis, alpha=(1.0 - SPENT_ON_LOOKS) * hypothesis.alpha)
    whole, narrowed = (frame(result, reference, h) for h in (hypothesis, left))
    own = find_margin(whole)
    more = {"margin": own} if margin is None and own > 0.0 else {}
    verdict = judge(result, reference, left, pairs, **more)
    warnings = [warning for warning in verdict.warnings if warning not in narrowed.warnings]
    said = (
        f"judged at alpha {left.alpha:g}: the looks for an early stop used the rest of"
        f" {hypothesis.alpha:g}"
    )
    return replace(
        verdict,
        threshold=whole.threshold,
        theta=whole.theta,
        alpha=whole.alpha,
        warnings=(*whole.warnings, *warnings, said),
    )
