"""Allow for the noise of a reference that was measured with few samples.

The ends of a difference are those of Newcombe's hybrid score method: the distances of each value
to the ends of its own interval are added in squares. Source: Newcombe 1998, "Interval estimation
for the difference between independent proportions: comparison of eleven methods", method 10.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from serve_eval.stats.wilson import INTERVAL_ALPHA

Ends = tuple[float, float]


def half_width(sigma: float, n: int, alpha: float = INTERVAL_ALPHA) -> float:
    """Return half the two-sided 1 - alpha interval of a mean: z sigma / sqrt(n)."""
    return NormalDist().inv_cdf(1.0 - alpha / 2.0) * sigma / math.sqrt(n)


def subtract(value: float, own: Ends, other: float, others: Ends | None) -> Ends:
    """Return the interval of value - other from the intervals of both; None: `other` is exact."""
    if others is None:
        return own[0] - other, own[1] - other
    low, high = others
    difference = value - other
    below = math.hypot(value - own[0], high - other)
    above = math.hypot(own[1] - value, other - low)
    return difference - below, difference + above
