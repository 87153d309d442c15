"""Join p-values of tests that ask the same questions, such as runs with other sampling seeds. Pure.

Source: Stouffer et al. 1949, "The American Soldier", volume 1, without its division by sqrt(k),
which assumes independent tests. The mean of z-values that are standard normal under the hypothesis
has a variance of at most 1, however they depend on each other, if they are jointly normal. Its p is
then no smaller than it should be, below one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, fmean

from serve_eval.errors import ServeEvalError

_LEAST = 1e-300
_MOST = 1.0 - 1e-16
"""The ends to which p is limited, since the z of 0 and of 1 are infinite."""


def mean_z_p(p_values: Sequence[float]) -> float:
    """Return p of the mean of the z-values of one-sided tests of the same hypothesis.

    Equal p-values stay as they are. Raises ServeEvalError without a p-value or for one outside
    0..1.
    """
    if not p_values or not all(0.0 <= p <= 1.0 for p in p_values):
        raise ServeEvalError(f"p-values between 0 and 1 are needed, not {list(p_values)}")
    normal = NormalDist()
    return normal.cdf(fmean(normal.inv_cdf(min(_MOST, max(_LEAST, p))) for p in p_values))
