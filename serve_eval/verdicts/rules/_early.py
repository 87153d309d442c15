"""Judge runs that may stop early, both those that stopped and those that ran to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serve_eval.schema import EarlyStop, Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.early_paired import SPENT_ON_LOOKS
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts.rules import _classic

ASSUMES = (
    "assumes that the remaining samples would score like those asked: an endpoint that degrades"
    " after the stop goes unnoticed"
)


def judge_decided(
    result: TaskResult, reference: Reference, hypothesis: Hypothesis, early: EarlyStop
) -> Verdict:
    """Return the verdict of a task that stopped early: it has an estimate, but no value."""
    base = _classic.frame(result, reference, hypothesis)
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
    whole, narrowed = (_classic.frame(result, reference, h) for h in (hypothesis, left))
    own = _classic.margin(whole)
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
