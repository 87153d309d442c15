"""The prompts that the reference always had right: fails when more of them are lost than in a
reference run.
"""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.judgement import ROUNDING
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import validity
from serve_eval.verdicts.rules import _classic
from serve_eval.verdicts.rules._paired import compare
from serve_eval.verdicts.rules._paired import warnings as paired_warnings

NEEDS_PAIRS = True
NEEDS_REFERENCE_RUNS = 2
"""All but the last choose the anchors, and the last is compared with."""


def check(**options: object) -> None:
    """There is no option that could not be meant."""


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None,
    *,
    max_missing: float = validity.MAX_MISSING,
) -> Verdict:
    """Verdict of one task by the anchors alone.

    FAIL: a drop among the anchors is proven at the task's alpha. The test is for the endpoint of
    the reference: a build that alters answers for good loses anchors as well. INCONCLUSIVE where
    missing answers leave it open, where too many are missing, and without enough anchors.
    """
    base = _classic.judge(result, reference, hypothesis, max_missing=max_missing)
    if pairs is None or base.outcome is VerdictOutcome.ERROR:
        return _classic.build_undecided(base, "anchors", paired=pairs is not None)
    margin = _classic.margin(base)
    told = compare(pairs, result, margin=margin, alpha=hypothesis.alpha, max_missing=max_missing)
    outcome, reasons = VerdictOutcome.PASS, tuple[str, ...]()
    if told.anchors is None or told.anchors.p_range is None:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = (
            (
                "few_anchors: two reference runs are needed, and ten prompts that all of them but"
                " the last had right"
            ),
        )
    elif told.anchors.p_range[1] <= hypothesis.alpha:
        outcome = VerdictOutcome.FAIL
        reasons = (
            _describe_lost(
                told.anchors.anchors, told.anchors.candidate_lost, told.anchors.reference_lost
            ),
        )
    elif pairs.missing_share > max_missing + ROUNDING:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = (f"too_many_missing: more than {max_missing:.0%} of the scores",)
    elif told.anchors.p_range[0] <= hypothesis.alpha:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = ("missing_results: the missing answers decide whether a drop is proven",)
    warnings = (*base.warnings, *paired_warnings(told))
    return replace(
        base, outcome=outcome, rule="anchors", reasons=reasons, warnings=warnings, paired=told
    )


def _describe_lost(anchors: int, candidate: int, reference: int) -> str:
    right = f"{anchors} prompts that were right in every reference run but the last"
    return f"anchors_lost: {candidate} of {right}, which had {reference} of them wrong"
