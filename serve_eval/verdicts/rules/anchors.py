"""Fail if more anchors, which the reference always had right, are lost than in a reference run."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import (
    AnchorComparison,
    Hypothesis,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.judgement import ROUNDING
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import validity
from serve_eval.verdicts.rules import _classic
from serve_eval.verdicts.rules._paired import compare
from serve_eval.verdicts.rules._paired import warnings as paired_warnings

NEEDS_PAIRS = True
NEEDS_REFERENCE_RUNS = 2
"""All runs but the last select the anchors; the last is the comparison."""


def check(**options: object) -> None:
    """Accept any options: none of this rule can be invalid."""


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None,
    *,
    max_missing: float = validity.MAX_MISSING,
) -> Verdict:
    """Return the verdict of one task by the anchors alone.

    FAIL: a drop among the anchors is proven at the task's alpha. The test is for the reference's
    own endpoint: a build that permanently alters answers loses anchors as well. INCONCLUSIVE:
    missing answers decide the result, too many answers are missing, or there are too few anchors.
    """
    base = _classic.judge(result, reference, hypothesis, max_missing=max_missing)
    if pairs is None or base.outcome is VerdictOutcome.ERROR:
        return _classic.build_undecided(base, "anchors", paired=pairs is not None)
    margin = _classic.find_margin(base)
    told = compare(pairs, result, margin=margin, alpha=hypothesis.alpha, max_missing=max_missing)
    outcome, reasons = VerdictOutcome.PASS, tuple[str, ...]()
    if told.anchors is None or told.anchors.p_range is None:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = (
            (
                "few_anchors: needs at least two reference runs, and at least ten prompts that were"
                " right in every reference run but the last"
            ),
        )
    elif told.anchors.p_range[1] <= hypothesis.alpha:
        outcome = VerdictOutcome.FAIL
        reasons = (_describe_lost(told.anchors, told.candidate_runs),)
    elif pairs.missing_share > max_missing + ROUNDING:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = (f"too_many_missing: more than {max_missing:.0%} of the scores are missing",)
    elif told.anchors.p_range[0] <= hypothesis.alpha:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = ("missing_results: whether a drop is proven depends on the missing answers",)
    warnings = (*_classic.leave_out_threshold(base), *paired_warnings(told))
    return replace(
        base, outcome=outcome, rule="anchors", reasons=reasons, warnings=warnings, paired=told
    )


def _describe_lost(found: AnchorComparison, candidate_runs: int) -> str:
    right = f"{found.anchors} prompts that were right in every earlier reference run"
    first = "" if candidate_runs == 1 else " by its first answers"
    return (
        f"anchors_lost: this run lost {found.candidate_lost}{first}, the last reference run"
        f" {found.reference_lost}, of the {right}"
    )
