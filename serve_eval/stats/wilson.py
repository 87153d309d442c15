"""Wilson's score interval for a proportion, also for the mean of scores between 0 and 1.

Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference". Scores
between 0 and 1 vary no more than right and wrong ones of the same mean, so that the interval is
then too wide rather than too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_level

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
