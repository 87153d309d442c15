"""Fail if a drop on the same prompts is proven and may matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from serve_eval.schema import Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import validity
from serve_eval.verdicts.rules import _classic
from serve_eval.verdicts.rules._paired import check, compare, small_drop
from serve_eval.verdicts.rules._paired import warnings as paired_warnings

NEEDS_PAIRS = True
"""Without stored scores of the reference, the run stops before any request is sent."""
EARLY_STOP = "pairs"

_OUTCOMES = {
    "PASS": VerdictOutcome.PASS,
    "SMALL_DROP": VerdictOutcome.PASS,
    "FAIL": VerdictOutcome.FAIL,
    "INCONCLUSIVE": VerdictOutcome.INCONCLUSIVE,
}


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None,
    *,
    margin: float | None = None,
    method: Literal[
        "auto", "mcnemar_midp", "mcnemar_exact", "permutation", "exchange", "signflip", "paired_t"
    ] = "auto",
    max_missing: float = validity.MAX_MISSING,
) -> Verdict:
    """Return the verdict of one task by the four-way finding.

    `margin` is the drop in points that matters. None uses the margin of the classic test, so that
    this rule does not pass what the classic rule fails (docs/method.md has the exceptions). FAIL: a
    drop is proven, and a drop of the margin or more is not excluded. A proven drop passes with a
    warning (SMALL_DROP) if a drop of the margin or more is excluded. Raises PlanError for an
    invalid margin.
    """
    check(margin=margin)
    base = _classic.judge(result, reference, hypothesis, max_missing=max_missing)
    if pairs is None or base.outcome is VerdictOutcome.ERROR:
        return _classic.build_undecided(base, "paired", paired=pairs is not None)
    drop = _classic.find_margin(base) if margin is None else margin
    told = compare(
        pairs, result, margin=drop, alpha=hypothesis.alpha, max_missing=max_missing, method=method
    )
    warnings = (*_classic.leave_out_threshold(base), *paired_warnings(told))
    if told.finding == "SMALL_DROP":
        warnings = (
            *warnings,
            f"{small_drop(told)}; a drop of {drop:.3f} points or more is excluded",
        )
    reasons = tuple(f"{reason}: by the paired comparison" for reason in told.reasons)
    outcome = _OUTCOMES[told.finding]
    return replace(
        base, outcome=outcome, rule="paired", reasons=reasons, warnings=warnings, paired=told
    )
