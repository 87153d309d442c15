"""Bound a proportion or a value that was measured on few or incomplete answers.

Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference". Scores
between 0 and 1 vary no more than right and wrong ones of the same mean, so that the interval is
then too wide rather than too narrow.

The ends of a difference are those of Newcombe's hybrid score method: the distances of each value
to the ends of its own interval are added in squares. Source: Newcombe 1998, "Interval estimation
for the difference between independent proportions: comparison of eleven methods", method 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level

INTERVAL_ALPHA = 0.05
"""1 minus the confidence of the two-sided intervals that are shown. No verdict uses it."""


def wilson(total: float, n: float, alpha: float) -> tuple[float, float]:
    """Return the two-sided 1 - alpha interval of the mean of n scores with the sum `total`.

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n). Raises ServeEvalError for
    a sum outside 0..n, no score, or alpha outside (0, 1). n may be an effective number of scores,
    which is no whole number.
    """
    check_level("alpha", alpha)
    if n < 1 or not 0.0 <= total <= n * (1.0 + 1e-12):
        raise ServeEvalError(f"{n:g} scores between 0 and 1 cannot have the sum {total}")
    z = NormalDist().inv_cdf(1.0 - alpha / 2.0)
    p = min(1.0, total / n)
    half = z * math.sqrt(p * (1.0 - p) / n + z * z / (4.0 * n * n))
    middle, scale = p + z * z / (2.0 * n), 1.0 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def wilson_of_repeats(means: Sequence[float], repeats: int, alpha: float) -> tuple[float, float]:
    """Return the two-sided 1 - alpha interval of the mean of questions with several answers each.

    `means` are those of each question's answers, in 0..1. It is Wilson's interval for the number of
    answers that would be as informative if each were to a question of its own: p (1 - p) / se^2
    with the standard error by question, times (z / t)^2 for the n - 1 degrees of freedom of that
    error (Korn and Graubard 1998, "Confidence intervals for proportions with small expected number
    of positive counts estimated from survey data"). The number is at least that of the questions
    and at most that of all answers; it is the number of questions if nothing varies, since equal
    answers show no spread.
    """
    import numpy
    from scipy.special import stdtrit

    row = numpy.asarray(means, dtype=numpy.float64)
    n, p = len(row), float(row.mean())
    if n < 2 or not 0.0 < p < 1.0 or (row == row[0]).all():
        return wilson(n * p, n, alpha)
    known = (
        NormalDist().inv_cdf(1.0 - alpha / 2.0) / float(stdtrit(n - 1, 1.0 - alpha / 2.0))
    ) ** 2
    size = known * n * p * (1.0 - p) / float(row.var(ddof=1))
    size = min(max(size, float(n)), float(n * repeats))
    return wilson(size * p, size, alpha)


Ends = tuple[float, float]


def half_width(sigma: float, n: int) -> float:
    """Return half the two-sided interval of a mean, at INTERVAL_ALPHA: z sigma / sqrt(n)."""
    return NormalDist().inv_cdf(1.0 - INTERVAL_ALPHA / 2.0) * sigma / math.sqrt(n)


def subtract(value: float, own: Ends, other: float, others: Ends | None) -> Ends:
    """Return the interval of value - other from the intervals of both; None: `other` is exact."""
    if others is None:
        return own[0] - other, own[1] - other
    low, high = others
    difference = value - other
    below = math.hypot(value - own[0], high - other)
    above = math.hypot(own[1] - value, other - low)
    return difference - below, difference + above


def failure_rate_upper(failures: int, n: int, confidence: float = 0.95) -> float:
    """Return a one-sided upper bound of the failure rate, as a proportion.

    `failures` of `n` requests failed. The bound is the rate at which so few failures have
    probability 1 - confidence: the quantile of Beta(failures + 1, n - failures) (Clopper and
    Pearson 1934). An objective of 1 % holds if the bound is at most 0.01. Raises ServeEvalError for
    impossible counts or a confidence outside (0, 1).
    """
    check_count("the number of requests", n, 1)
    check_count("the number of failures", failures)
    check_level("confidence", confidence)
    if failures > n:
        raise ServeEvalError(
            f"{failures} of {n} requests cannot have failed", hint="count each request once"
        )
    if failures == n:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(failures + 1, n - failures, confidence))


def bound_missing(
    total: float, scored: int, planned: int, worst: float, best: float
) -> tuple[float, float]:
    """Return the lowest and highest mean over `planned` samples if only `scored` of them are known.

    `total` is the sum of the known scores; `worst` and `best` are the ends of the metric's range in
    the same unit. Raises ServeEvalError if nothing was planned or more was scored than planned.
    """
    if planned < 1 or not 0 <= scored <= planned:
        raise ServeEvalError(f"{scored} samples of {planned} planned ones cannot have been scored")
    missing = planned - scored
    return (total + missing * worst) / planned, (total + missing * best) / planned
