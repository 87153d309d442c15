"""How large can the drop be? Confidence bounds, non-inferiority and equivalence for a set of pairs.

Right/wrong pairs take Tango's score bounds. Others take the t bounds, but only from 30 changed prompts on: with few
changes the t interval is far too short, and with none it would prove anything. Below that the bet against the margin
decides, which is valid for any bounded scores and wider.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from serve_eval.stats.betting import evidence_p, mean_lower_bound, unit_values
from serve_eval.stats.inputs import check_level, check_margin
from serve_eval.stats.paired_t import PairedT, paired_t
from serve_eval.stats.pairs import Pairs
from serve_eval.stats.tango import score_bounds, score_noninferiority_p

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

ENOUGH_CHANGES = 30  # differences other than 0 from which on the t bounds are used


class BoundsMethod(StrEnum):
    """NONE: nothing can be said, since few changed in a metric without a range."""

    TANGO = "tango"
    T = "t"
    BETTING = "betting"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Bounds:
    """One-sided 1 - alpha bounds of the true difference in the unit of the scores: "a drop beyond `lower` is excluded".

    `lower` counts missing scores as worst for the candidate, `upper` as best. `lower_at_best` is the lower bound with
    the missing scores at their best, the other end of what they leave open.
    """

    method: BoundsMethod
    lower: float
    upper: float
    lower_at_best: float


@dataclass(frozen=True, slots=True)
class MarginTest:
    """`holds`: the drop (for equivalence, the difference) is shown to stay within the margin; `p` is its p-value."""

    p: float
    holds: bool


def bounds(pairs: Pairs, alpha: float) -> Bounds:
    """Bounds for the mean difference. Raises ServeEvalError for alpha outside (0, 1)."""
    check_level("alpha", alpha)
    method = _method(pairs)
    at_best = _ends(pairs, method, pairs.best, alpha)
    lower = at_best[0] if pairs.missing == 0 else _ends(pairs, method, pairs.worst, alpha)[0]
    return Bounds(method, lower, at_best[1], at_best[0])


def noninferiority(pairs: Pairs, margin: float, alpha: float) -> MarginTest:
    """Is a drop of `margin` or more excluded at level alpha? Missing scores count as worst for the candidate."""
    check_margin(margin)
    check_level("alpha", alpha)
    p = _margin_p(pairs, _method(pairs), pairs.worst, margin)
    return MarginTest(p, bounds(pairs, alpha).lower > -margin)


def equivalence(pairs: Pairs, margin: float, alpha: float) -> MarginTest:
    """Are a drop and a gain of `margin` or more both excluded? Two one-sided tests (Schuirmann 1987)."""
    check_margin(margin)
    check_level("alpha", alpha)
    method, ends = _method(pairs), bounds(pairs, alpha)
    p = max(_margin_p(pairs, method, pairs.worst, margin), _margin_p(pairs, method, -pairs.best, margin))
    return MarginTest(p, ends.lower > -margin and ends.upper < margin)


def _method(pairs: Pairs) -> BoundsMethod:
    import numpy

    if pairs.missing and not math.isfinite(pairs.span):
        return BoundsMethod.NONE
    if pairs.binary:
        return BoundsMethod.TANGO
    if pairs.units >= 2 and numpy.count_nonzero(pairs.differences) >= ENOUGH_CHANGES:
        return BoundsMethod.T
    return BoundsMethod.BETTING if math.isfinite(pairs.span) else BoundsMethod.NONE


def _ends(pairs: Pairs, method: BoundsMethod, differences: FloatArray, alpha: float) -> tuple[float, float]:
    if method is BoundsMethod.NONE:
        return -math.inf, math.inf
    if method is BoundsMethod.TANGO:
        return score_bounds(*_changes(differences), pairs.n, alpha)
    if method is BoundsMethod.T:
        return _t(pairs, differences).bounds(alpha)
    values, factor = unit_values(differences, pairs.weights, pairs.clusters, pairs.span)
    low, high = mean_lower_bound(values, alpha), -mean_lower_bound(-values, alpha)
    return max(low * factor, -pairs.span), min(high * factor, pairs.span)


def _margin_p(pairs: Pairs, method: BoundsMethod, differences: FloatArray, margin: float) -> float:
    """p of "the drop reaches the margin"."""
    if method is BoundsMethod.NONE:
        return 1.0
    if method is BoundsMethod.TANGO:
        return score_noninferiority_p(*_changes(differences), pairs.n, margin)
    if method is BoundsMethod.T:
        return _t(pairs, differences).noninferiority_p(margin)
    values, factor = unit_values(differences, pairs.weights, pairs.clusters, pairs.span)
    return 0.0 if margin > pairs.span else evidence_p(values, -margin / factor)


def _t(pairs: Pairs, differences: FloatArray) -> PairedT:
    return paired_t(differences, pairs.weights, pairs.clusters)


def _changes(differences: FloatArray) -> tuple[int, int]:
    return int((differences < 0.0).sum()), int((differences > 0.0).sum())
