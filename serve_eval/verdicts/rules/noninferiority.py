"""Pass if the same prompts exclude a drop of the margin or more.

The rule compares two ways of serving one model.
"""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import (
    Hypothesis,
    PairedComparison,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import validity
from serve_eval.verdicts.rules import _classic
from serve_eval.verdicts.rules._paired import check, compare
from serve_eval.verdicts.rules._paired import warnings as paired_warnings

NEEDS_PAIRS = True
EARLY_STOP = "pairs"

MARGIN = 1.0
"""Default of the drop that must be excluded, in points."""


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None,
    *,
    margin: float = MARGIN,
    max_missing: float = validity.MAX_MISSING,
) -> Verdict:
    """Return the verdict of one task. `margin` is in points and fixed before the run.

    PASS: a drop of the margin or more on these prompts is excluded (the lower bound of the
    difference is above -margin). FAIL: a drop of the margin or more is shown (the upper bound is
    below -margin), and no build of equal accuracy explains it (p). INCONCLUSIVE: neither; more
    prompts or runs are needed. Raises PlanError for an invalid margin.
    """
    check(margin=margin)
    base = _classic.judge(result, reference, hypothesis, max_missing=max_missing)
    if pairs is None or base.outcome is VerdictOutcome.ERROR:
        return _classic.build_undecided(base, "noninferiority", paired=pairs is not None)
    told = compare(pairs, result, margin=margin, alpha=hypothesis.alpha, max_missing=max_missing)
    too_many = "too_many_missing" in told.reasons
    few = next(
        (reason for reason in told.reasons if reason in ("too_few_pairs", "few_clusters")), None
    )
    reasons: tuple[str, ...] = ()
    if few is not None:
        outcome = VerdictOutcome.INCONCLUSIVE
        unit = "prompts" if few == "too_few_pairs" else "clusters of prompts"
        reasons = (f"{few}: a verdict needs at least {MIN_UNITS} {unit}",)
    elif told.noninferior and not too_many:
        outcome = VerdictOutcome.PASS
    elif told.upper is not None and told.upper < -margin and _is_proven(told):
        outcome = VerdictOutcome.FAIL
    elif told.upper is not None and told.upper < -margin:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = (
            f"unproven_drop: a drop of {margin:g} points is shown on these prompts, but a build of"
            " equal accuracy may lose as much on so few; more prompts decide, more repeats do not",
        )
    else:
        outcome = VerdictOutcome.INCONCLUSIVE
        why = "too_many_missing" if too_many else "margin_not_excluded"
        reasons = (f"{why}: a drop of {margin:g} points is neither excluded nor shown",)
    warnings = (*_classic.leave_out_threshold(base), *paired_warnings(told))
    return replace(
        base,
        outcome=outcome,
        rule="noninferiority",
        reasons=reasons,
        warnings=warnings,
        paired=told,
    )


def _is_proven(told: PairedComparison) -> bool:
    return told.p is not None and told.p <= told.alpha
