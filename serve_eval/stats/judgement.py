"""Judge one task by its pairs: test, anchors, bounds, finding, or reasons for no conclusion.

Of K reference runs all but the last select the anchors: the prompts with the best score in each of
them. The last registered run had no part in the selection. It is paired with the candidate on the
anchors alone. If the candidate is the same endpoint, these two sides are exchangeable on any
prompts that other runs selected, so the test of a drop is as exact there as on all prompts. Prompts
with varying answers are left out, and with them most of the noise, so a loss of stable prompts is
detected with a fraction of the requests.

A build that permanently alters answers loses anchors too, even if it gains as many other prompts:
its gains are outside the anchors. The test therefore asks for the same endpoint, not for the same
mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
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
from serve_eval.stats.intervals import INTERVAL_ALPHA
from serve_eval.stats.pairs import Pairs, RunEffect, pair
from serve_eval.stats.repeats import run_effect

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


MIN_ANCHORS = 10
"""Least number of anchors for a conclusion."""


@dataclass(frozen=True, slots=True)
class AnchorTest:
    """The result of the test on `anchors` prompts.

    The last reference run lost `reference_lost` of them, the candidate's first run
    `candidate_lost`. `test` is the test for a drop among them.
    """

    anchors: int
    reference_lost: int
    candidate_lost: int
    test: DropTest


def anchor_pairs(pairs: Pairs) -> Pairs | None:
    """Pair the last reference run with the candidate on the anchors.

    None for fewer than two reference runs, for fewer than MIN_ANCHORS anchors with an answer on
    both sides, and for a metric without a best score.
    """
    import numpy

    if pairs.reference_runs < 2 or not numpy.isfinite(pairs.good):
        return None
    chosen: NDArray[numpy.bool_] = (pairs.reference[:-1] == pairs.good).all(axis=0) & (
        pairs.weights > 0.0
    )
    if int((chosen & pairs.complete).sum()) < MIN_ANCHORS:
        return None
    return pair(
        pairs.reference[-1:, chosen],
        pairs.candidate[:, chosen],
        lo=min(pairs.bad, pairs.good),
        hi=max(pairs.bad, pairs.good),
        higher_is_better=pairs.good > pairs.bad,
        weights=pairs.weights[chosen] if pairs.weighted else None,
        clusters=None if pairs.clusters is None else pairs.clusters[chosen].tolist(),
    )


def anchor_test(pairs: Pairs) -> AnchorTest | None:
    """Test for a drop among the anchors; None if `anchor_pairs` returns None.

    A missing answer counts as worst and as best in turn, see `drop_test`.
    """
    import numpy

    chosen = anchor_pairs(pairs)
    if chosen is None:
        return None
    good = chosen.good
    return AnchorTest(
        anchors=chosen.n,
        reference_lost=int(numpy.nansum(chosen.reference[0] != good)),
        candidate_lost=int(
            (~numpy.isnan(chosen.candidate[0]) & (chosen.candidate[0] != good)).sum()
        ),
        test=drop_test(chosen),
    )
