"""Estimate how often values lie beyond a limit that none of those seen reaches.

Beyond a threshold, most distributions fall like a power of the value; the exponent follows from the
largest values. Sources: Hill, "A simple general approach to inference about the tail of a
distribution", 1975; Weissman, "Estimation of parameters and large quantiles based on the k largest
observations", 1978.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGEST = 15
"""Number of the largest values from which the exponent is estimated."""


def share_beyond(values: Sequence[float], limit: float, largest: int = LARGEST) -> float:
    """Return the estimated chance that a further value is beyond a limit.

    It is the share of `values` beyond the limit if there are any. 1 for too few values.
    """
    ordered = sorted(values, reverse=True)
    if len(ordered) <= largest:
        return 1.0
    if beyond := sum(one > limit for one in ordered):
        return beyond / len(ordered)
    threshold = ordered[largest]
    if threshold <= 0.0:
        return 0.0 if ordered[0] <= 0.0 else largest / len(ordered)
    hill = sum(math.log(one / threshold) for one in ordered[:largest]) / largest
    if hill <= 0.0:
        return 0.0
    return largest / len(ordered) * float((limit / threshold) ** (-1 / hill))


def count_unlikely(mean: float, alpha: float) -> int:
    """Return the smallest number that a Poisson number of this mean reaches rarely enough.

    Its chance to be reached is at most alpha.
    """
    term, below, count = math.exp(-mean), math.exp(-mean), 1
    while 1.0 - below > alpha:
        term *= mean / count
        below += term
        count += 1
    return count
