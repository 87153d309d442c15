"""Judge one task by its pairs: test, bounds, finding, and the reasons for no conclusion."""

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
from serve_eval.stats.finding import MIN_UNITS, PairedFinding, Range, finding
from serve_eval.stats.inputs import check_level, check_margin
from serve_eval.stats.pairs import Pairs, RunEffect
from serve_eval.stats.run_effects import run_effect
from serve_eval.stats.wilson import INTERVAL_ALPHA

ROUNDING = 1e-9
"""Rounding error by which a share may exceed a limit."""


class Reason(StrEnum):
    """The reason for an INCONCLUSIVE finding."""

    TOO_FEW_PAIRS = "too_few_pairs"
    FEW_CLUSTERS = "few_clusters"
    FEW_CHANGES = "few_changes"
    TOO_MANY_MISSING = "too_many_missing"
    MISSING_RESULTS = "missing_results"
    MARGIN_NOT_EXCLUDED = "margin_not_excluded"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The result of a paired comparison.

    Every effect is in the unit of the scores; negative is worse. `bounds` are one-sided, at the
    level of the test; `interval` encloses the true difference with 95 % confidence.
    """

    finding: PairedFinding
    reasons: tuple[Reason, ...]
    test: DropTest
    bounds: Bounds
    interval: Bounds
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

    If the runs of a side differ as a whole, every standard error is inflated for it
    (`run_effects`). The finding is INCONCLUSIVE, with its reason, in these cases: fewer than ten
    independent pairs or clusters; more than `max_missing` of the scores missing (unless the
    candidate fails even with them at their best); missing answers that could change the finding;
    and data that exclude neither "no drop" nor "a drop of the margin". Raises ServeEvalError for
    parameters out of range.
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
        interval=bounds(pairs, INTERVAL_ALPHA / 2.0, inflation),
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
    """Return the finding and its reasons from p and the bounds.

    Call it again with a p range that was corrected for many tests (Holm).
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
