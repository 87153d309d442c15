"""Bound the size of a drop: confidence bounds, non-inferiority and equivalence for a set of pairs.

The drop is that on these questions: the answers are its only noise, so that repeats on both sides
narrow the bounds (`repeat_pairs`).

Right/wrong pairs use Tango's score bounds. Other scores within a range use the same score for any
values. Scores without a range use the t bounds, but only from 30 changed prompts on: with few
changes the t interval is far too short, and with none it would prove anything. Scores whose range
ends far beyond them use the t bounds too, and the score bounds below 30 changed prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from serve_eval.stats.inputs import check_level, check_margin
from serve_eval.stats.paired_t import PairedT, paired_t, scale_to_range
from serve_eval.stats.pairs import Pairs, count_pairs_of_repeats, pair_repeats
from serve_eval.stats.repeats import inflate_bound, inflate_p
from serve_eval.stats.score_bounds import (
    mean_score_lower_bound,
    mean_score_p,
    score_bounds,
    score_noninferiority_p,
)

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

ENOUGH_CHANGES = 30  # least number of differences other than 0 for the t bounds


class BoundsMethod(StrEnum):
    """The method of the bounds.

    NONE: there are no bounds, since few scores changed in a metric without a range.
    """

    TANGO = "tango"
    SCORE = "score"
    T = "t"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Bounds:
    """One-sided 1 - alpha bounds of the true difference, in the unit of the scores.

    They read "a drop beyond `lower` is excluded". `lower` counts missing scores as worst for the
    candidate, `upper` as best. `lower_at_best` is the lower bound with the missing scores at their
    best: with `lower` it spans what the missing scores leave open.
    """

    method: BoundsMethod
    lower: float
    upper: float
    lower_at_best: float


@dataclass(frozen=True, slots=True)
class MarginTest:
    """The result of a non-inferiority or equivalence test.

    `holds`: the drop (for equivalence, the difference) is shown to stay within the margin. `p` is
    its p-value.
    """

    p: float
    holds: bool


def bounds(pairs: Pairs, alpha: float, inflation: float = 1.0) -> Bounds:
    """Return the bounds of the mean difference.

    `inflation` multiplies the standard error, see `run_effects`. Raises ServeEvalError for alpha
    outside (0, 1).
    """
    check_level("alpha", alpha)
    method = _method(pairs)
    best = _repeat_differences(pairs, at_best=True)
    at_best = _ends(pairs, method, best, alpha, inflation)
    lower = at_best[0]
    if pairs.missing:
        worst = _repeat_differences(pairs, at_best=False)
        lower = _ends(pairs, method, worst, alpha, inflation)[0]
    return Bounds(method, lower, at_best[1], at_best[0])


def noninferiority(
    pairs: Pairs, margin: float, alpha: float, inflation: float = 1.0, *, ends: Bounds | None = None
) -> MarginTest:
    """Test whether a drop of `margin` or more is excluded at level alpha.

    Missing scores count as worst for the candidate. `ends` are the bounds at this alpha and
    inflation, if already known.
    """
    check_margin(margin)
    check_level("alpha", alpha)
    worst = _repeat_differences(pairs, at_best=False)
    p = inflate_p(_margin_p(pairs, _method(pairs), worst, margin), inflation)
    return MarginTest(p, (ends or bounds(pairs, alpha, inflation)).lower > -margin)


def equivalence(
    pairs: Pairs, margin: float, alpha: float, inflation: float = 1.0, *, ends: Bounds | None = None
) -> MarginTest:
    """Test whether a drop and a gain of `margin` or more are both excluded.

    These are two one-sided tests (Schuirmann 1987).
    """
    check_margin(margin)
    check_level("alpha", alpha)
    method, ends = _method(pairs), ends or bounds(pairs, alpha, inflation)
    worst, best = (_repeat_differences(pairs, at_best=at_best) for at_best in (False, True))
    p = max(_margin_p(pairs, method, worst, margin), _margin_p(pairs, method, -best, margin))
    return MarginTest(inflate_p(p, inflation), ends.lower > -margin and ends.upper < margin)


def _method(pairs: Pairs) -> BoundsMethod:
    import numpy

    if pairs.missing and not math.isfinite(pairs.span):
        return BoundsMethod.NONE
    if pairs.binary:
        return BoundsMethod.TANGO
    ranged = math.isfinite(pairs.span)
    if ranged and not pairs.far_ends:
        return BoundsMethod.SCORE
    if pairs.units >= 2 and numpy.count_nonzero(pairs.differences) >= ENOUGH_CHANGES:
        return BoundsMethod.T
    return BoundsMethod.SCORE if ranged else BoundsMethod.NONE


def _repeat_differences(pairs: Pairs, *, at_best: bool) -> FloatArray:
    """Return differences by rotation, pair of repeats and prompt, with missing scores filled."""
    if count_pairs_of_repeats(pairs.reference_runs, pairs.candidate_runs) == 1:
        return (pairs.best if at_best else pairs.worst)[None, None]
    rows = pairs.fill_runs(at_best=at_best)
    return pair_repeats(rows[: pairs.reference_runs], rows[pairs.reference_runs :])


def _ends(
    pairs: Pairs, method: BoundsMethod, differences: FloatArray, alpha: float, inflation: float
) -> tuple[float, float]:
    if method is BoundsMethod.NONE:
        return -math.inf, math.inf
    if method is BoundsMethod.TANGO:
        ends = score_bounds(*_changes(differences), pairs.n, alpha)
    elif method is BoundsMethod.T:
        ends = _t(pairs, differences).bounds(alpha)
    else:
        values, factor = scale_to_range(pairs, differences)
        n = values[0].size
        ends = (
            mean_score_lower_bound(values.ravel(), alpha, n) * factor,
            -mean_score_lower_bound(-values.ravel(), alpha, n) * factor,
        )
    mean = float(differences.mean(axis=(0, 1)) @ pairs.weights)
    low, high = (inflate_bound(end, mean, inflation) for end in ends)
    return max(low, -pairs.span), min(high, pairs.span)


def _margin_p(pairs: Pairs, method: BoundsMethod, differences: FloatArray, margin: float) -> float:
    """Return p of "the drop reaches the margin"."""
    if method is BoundsMethod.NONE:
        return 1.0
    if method is BoundsMethod.TANGO:
        return score_noninferiority_p(*_changes(differences), pairs.n, margin)
    if method is BoundsMethod.T:
        return _t(pairs, differences).noninferiority_p(margin)
    if margin > pairs.span:
        return 0.0
    values, factor = scale_to_range(pairs, differences)
    return mean_score_p(values.ravel(), -margin / factor, values[0].size)


def _t(pairs: Pairs, differences: FloatArray) -> PairedT:
    """Return the t test in which each pair of repeats of a unit is a unit of its own."""
    import numpy

    rows = differences[0]
    repeats = len(rows)
    clusters = None
    if pairs.clusters is not None:
        groups = int(pairs.clusters.max()) + 1
        clusters = numpy.concatenate([pairs.clusters + groups * i for i in range(repeats)])
    return paired_t(rows.ravel(), numpy.tile(pairs.weights, repeats), clusters)


def _changes(differences: FloatArray) -> tuple[int, int]:
    return int((differences < 0.0).sum()), int((differences > 0.0).sum())
