"""Correct, join or count the p-values of many tests.

Of 40 tests at 5 %, some false alarm is nearly certain (87 %). Holm keeps the chance of any false
alarm at alpha under any dependence and suits a gate. Benjamini-Hochberg keeps the share of false
alarms among all alarms and suits triage only.

Source: Stouffer et al. 1949, "The American Soldier", volume 1, without its division by sqrt(k),
which assumes independent tests. The mean of z-values that are standard normal under the hypothesis
has a variance of at most 1, however they depend on each other, if they are jointly normal. Its p is
then no smaller than it should be, below one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import NormalDist, fmean

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level, check_p_values

SPENT_ON_LOOKS = 0.5
"""Share of alpha that the looks of a run use; its end uses the rest."""


def holm(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values in the order given: reject if <= alpha.

    The i-th smallest of m (from 0) is multiplied by m - i, and no value is below a smaller one's
    (Holm 1979, "A simple sequentially rejective multiple test procedure"). Raises ServeEvalError
    for values outside 0..1.
    """
    check_p_values(p)
    order = sorted(range(len(p)), key=p.__getitem__)
    scaled = [min(1.0, (len(p) - rank) * p[place]) for rank, place in enumerate(order)]
    return _in_place(order, accumulate(scaled, max))


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return q-values in the order given: of those at most q, a share of q is expected to be false.

    The i-th smallest of m (from 1) is multiplied by m / i, and no value is above a larger one's
    (Benjamini and Hochberg 1995, "Controlling the false discovery rate"). Raises ServeEvalError for
    values outside 0..1.
    """
    check_p_values(p)
    order = sorted(range(len(p)), key=p.__getitem__, reverse=True)
    scaled = [min(1.0, len(p) / (len(p) - rank) * p[place]) for rank, place in enumerate(order)]
    return _in_place(order, accumulate(scaled, min))


def _in_place(order: Sequence[int], values: accumulate[float]) -> list[float]:
    """Return sorted values at their original positions."""
    back = dict(zip(order, values, strict=True))
    return [back[place] for place in range(len(order))]


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


def acceptance_region(replicates: int, level: float, false_alarm: float = 0.001) -> tuple[int, int]:
    """Return the fewest and most rejections expected of `replicates` independent tests.

    The tests have the true level `level`. A correct level falls outside with probability at most
    `false_alarm`, half of it on either side (exact binomial quantiles). Raises ServeEvalError for
    no replicates, or a level or false alarm rate outside (0, 1).
    """
    check_count("the number of replicates", replicates, 1)
    check_level("the level", level)
    check_level("the false alarm rate", false_alarm)
    import numpy
    from scipy.special import bdtr

    below = bdtr(numpy.arange(replicates + 1), replicates, level)
    low, high = numpy.searchsorted(
        below, [false_alarm / 2.0, 1.0 - false_alarm / 2.0], side="right"
    )
    return int(low), int(high)
