"""Wilson's score interval for a proportion, also for the mean of scores between 0 and 1.

Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference". Scores
between 0 and 1 vary no more than right and wrong ones of the same mean, so that the interval is
then too wide rather than too narrow.
"""

from __future__ import annotations

import math
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
