"""The paired judgement of one task: test, bounds, finding, and the reasons where nothing can be
concluded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from serve_eval.errors import ServeEvalError
from serve_eval.stats.anchors import AnchorTest, anchor_test
from serve_eval.stats.bounds import (
    Bounds,
    BoundsMethod,
    MarginTest,
    bounds,
    equivalence,
    noninferiority,
)
from serve_eval.stats.drop import DropTest, Method, drop_test, inflate
from serve_eval.stats.finding import PairedFinding, Range, finding
from serve_eval.stats.inputs import check_level, check_margin
from serve_eval.stats.pairs import Pairs, RunEffect
from serve_eval.stats.run_effects import run_effect

MIN_UNITS = 10
"""Independent pairs, or clusters of them, below which nothing is concluded: a handful is no test of
a deployment."""

ROUNDING = 1e-9
"""By how much a share may exceed a limit for the sake of arithmetic."""


class Reason(StrEnum):
    """Why a finding is INCONCLUSIVE."""

    TOO_FEW_PAIRS = "too_few_pairs"
    FEW_CLUSTERS = "few_clusters"
    FEW_CHANGES = "few_changes"
    TOO_MANY_MISSING = "too_many_missing"
    MISSING_RESULTS = "missing_results"
    MARGIN_NOT_EXCLUDED = "margin_not_excluded"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """What the pairs say. Every effect is in the unit of the scores; negative is worse."""

    finding: PairedFinding
    reasons: tuple[Reason, ...]
    test: DropTest
    bounds: Bounds
    noninferior: MarginTest
    equivalent: MarginTest
    run_effect: RunEffect | None = None
    anchors: AnchorTest | None = None


def judge(
    pairs: Pairs,
    *,
    margin: float,
    alpha: float = 0.05,
    method: str = Method.AUTO,
    max_missing: float = 0.02,
) -> PairedTest:
    """Apply the paired test and the bounds to one task.

    Where the runs of a side differ as a whole, every standard error is inflated for it
    (`run_effects`). INCONCLUSIVE, with its reason, for fewer than ten independent pairs or
    clusters, for more than `max_missing` of the scores missing (unless even at their best the
    candidate fails), when missing answers could change the finding, and when the data exclude
    neither "no drop" nor "a drop of the margin". Raises ServeEvalError for parameters out of range.
    """
    check_level("alpha", alpha)
    check_margin(margin)
    if not 0.0 <= max_missing <= 1.0:
        raise ServeEvalError(
            f"max_missing must be a share from 0 to 1, not {max_missing}",
            hint="0.02 allows 2 % of the prompts to fail",
        )
    effect = run_effect(pairs)
    inflation = 1.0 if effect is None else effect.inflation
    test, ends = inflate(drop_test(pairs, method), inflation), bounds(pairs, alpha, inflation)
    anchors = anchor_test(pairs)
    result, reasons = conclude(
        pairs, test.p_range, ends, alpha=alpha, margin=margin, max_missing=max_missing
    )
    return PairedTest(
        finding=result,
        reasons=reasons,
        test=test,
        bounds=ends,
        noninferior=noninferiority(pairs, margin, alpha, inflation, ends=ends),
        equivalent=equivalence(pairs, margin, alpha, inflation, ends=ends),
        run_effect=effect,
        anchors=(
            None if anchors is None else replace(anchors, test=inflate(anchors.test, inflation))
        ),
    )


def conclude(
    pairs: Pairs,
    p_range: Range | None,
    ends: Bounds,
    *,
    alpha: float,
    margin: float,
    max_missing: float,
) -> tuple[PairedFinding, tuple[Reason, ...]]:
    """Finding and reasons from p and bounds. Call it again with a p range that was corrected for
    many tests (Holm).
    """
    if p_range is None or pairs.units < MIN_UNITS:
        few = (
            Reason.TOO_FEW_PAIRS
            if pairs.clusters is None or p_range is None
            else Reason.FEW_CLUSTERS
        )
        return PairedFinding.INCONCLUSIVE, (few,)
    result = finding(p_range, alpha, (ends.lower, ends.lower_at_best), margin)
    if pairs.missing_share > max_missing + ROUNDING and result is not PairedFinding.FAIL:
        return PairedFinding.INCONCLUSIVE, (Reason.TOO_MANY_MISSING,)
    if result is not PairedFinding.INCONCLUSIVE:
        return result, ()
    possible = {
        finding(p, alpha, lower, margin)
        for p in p_range
        for lower in (ends.lower, ends.lower_at_best)
    }
    if len(possible) > 1 or (pairs.missing and ends.method is BoundsMethod.NONE):
        return result, (Reason.MISSING_RESULTS,)
    if ends.method is BoundsMethod.NONE:
        return result, (Reason.FEW_CHANGES,)
    return result, (Reason.MARGIN_NOT_EXCLUDED,)
