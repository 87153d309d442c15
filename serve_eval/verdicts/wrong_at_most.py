"""Bound the number of wrong answers behind a value, of which the answers are not known."""

from __future__ import annotations

import math

from serve_eval.schema import Metric


def count_wrong_at_most(
    metric: Metric, value: float, n: int, *, higher_is_better: bool | None = None, graded: bool
) -> int | None:
    """Return how many of n answers can be wrong if their mean is `value`, None without a range.

    The distance of the mean from the best score is shared by the wrong answers. An answer has the
    whole range as its share if it has the worst score, or half of it at least if answers are
    `graded` and those in the lower half count as wrong (Markov's inequality). `higher_is_better`
    replaces that of the metric.
    """
    lo, hi = metric.lo, metric.hi
    if lo is None or hi is None or hi <= lo or not metric.scale:
        return None
    higher = metric.higher_is_better if higher_is_better is None else higher_is_better
    mean = value / metric.scale
    missing = (hi - mean if higher else mean - lo) / (hi - lo)
    return min(n, max(0, math.ceil(n * missing * (2 if graded else 1) - 1e-9)))
