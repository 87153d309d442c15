"""Verdicts of runs that may stop early: of those that did, and of those that went to their end all
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serve_eval.schema import EarlyStop, Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.early_paired import SPENT_ON_LOOKS
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts.rules import _classic

ASSUMES = (
    "assumes that what was not asked is like what was: an endpoint that turns worse after the stop"
    " is not seen"
)


def judge_decided(
    result: TaskResult, reference: Reference, hypothesis: Hypothesis, early: EarlyStop
) -> Verdict:
    """Judge a task that was not asked to its end: there is no value, only an estimate."""
    base = _classic.frame(result, reference, hypothesis)
    outcome = VerdictOutcome(str(early.decision))
    if early.alpha is None:
        promise = (
            f"the verdict is that of all of them except with a probability of {early.eps:g} at most"
        )
    else:
        did = "excluded" if outcome is VerdictOutcome.PASS else "shown"
        promise = (
            f"a drop of {early.margin:.4g} points is {did} at {1.0 - early.alpha:.1%}, alpha"
            f" {early.alpha:g} of the {hypothesis.alpha:g} being for the looks"
        )
    warning = (
        f"stopped early, on {early.looked_at} of {early.planned} samples in random order:"
        f" {promise}, and the value is partial; {ASSUMES}"
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
    """Judge a run to its end by a paired rule that has looked at it on the way: with what of alpha
    the looks left.

    The classic figures beside it (threshold, theta, and the margin where `margin`, that of the
    rule, is None) stay those of the whole alpha: only the test changes.
    """
    left = replace(hypothesis, alpha=(1.0 - SPENT_ON_LOOKS) * hypothesis.alpha)
    whole, narrowed = (_classic.frame(result, reference, h) for h in (hypothesis, left))
    own = _classic.margin(whole)
    more = {"margin": own} if margin is None and own > 0.0 else {}
    verdict = judge(result, reference, left, pairs, **more)
    warnings = [warning for warning in verdict.warnings if warning not in narrowed.warnings]
    said = (
        f"judged at alpha {left.alpha:g}: the rest of {hypothesis.alpha:g} was for the looks of an"
        " early stop"
    )
    return replace(
        verdict,
        threshold=whole.threshold,
        theta=whole.theta,
        alpha=whole.alpha,
        warnings=(*whole.warnings, *warnings, said),
    )
