"""Compute the margins that equal answers exclude, before anything is asked.

With N independent pairs of equal answers the score bound excludes a drop of z^2 / (N + z^2) or
more: under a drop of m a pair differs with a chance of m, and z = m sqrt(N / (m (1 - m))). Fewer
changes than none cannot be seen, so that a smaller margin is out of reach for an equal candidate.
Unit: proportions.
"""

from __future__ import annotations

import math

from serve_eval.stats.inputs import check_count, check_level, check_margin

ROUNDING = 1e-9
"""Share by which rounding may move a number of pairs that is just not enough."""


def least_excluded(pairs: int, alpha: float) -> float:
    """Return the drop that `pairs` of equal answers just do not exclude at level alpha."""
    check_count("the number of pairs", pairs, 1)
    squared = _square_z(alpha)
    return squared / (pairs + squared)


def num_pairs_to_exclude(margin: float, alpha: float) -> int:
    """Return the least number of pairs of equal answers that exclude a drop of `margin`."""
    check_margin(margin)
    squared = _square_z(alpha)
    return max(1, math.floor(squared * (1.0 - margin) / margin * (1.0 + ROUNDING)) + 1)


def _square_z(alpha: float) -> float:
    check_level("alpha", alpha)
    from scipy.special import ndtri

    return float(ndtri(alpha)) ** 2
