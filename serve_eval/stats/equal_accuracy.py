"""Test "no drop" against every build of equal accuracy, also if its differences are skewed.

A build may be steadier than the reference, or solve other prompts. Its differences then have the
mean 0, but not the same distribution as their negatives: at an accuracy of 3 %, a build that always
answers alike gains one whole answer on few prompts and loses a bit on many. Flipping signs assumes
the symmetry, and called such builds worse in up to 37 % of the cases at 5 %.

The null distribution is here the likeliest one with mean 0 on the observed differences and the ends
of their range (Owen 1988, "Empirical likelihood ratio confidence intervals for a single
functional"). p is the probability that the mean of n draws from it is as low as the observed one:
the bootstrap under the hypothesis (DiCiccio and Romano 1990, "Nonparametric confidence limits by
resampling methods and least favorable families"), without drawing. A gain that was not observed,
such as a prompt won for good, counts through the end of the range. Prompts are taken as drawn from
a population, so that p has the noise of the questions and of the answers.

The probability is exact for differences on a common grid. For others it is the saddlepoint
approximation of Lugannani and Rice 1980, "Saddle point approximation for the distribution of the
sum of independent random variables".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from serve_eval.stats.bounded_score import PRECISION, count_shares, likeliest
from serve_eval.stats.permutation import PermutationTest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

MAX_STEPS = 1_000
"""Largest number of grid steps from 0 to the end of the range."""
MAX_GRID = 1 << 20
"""Largest number of grid points of the sum; beyond it the saddlepoint is used."""
ON_GRID = 1e-7
"""Largest distance from a grid point, in steps, that rounding may cause."""
NEAR_MEAN = 1e-3
"""Number of standard errors from the mean below which the saddlepoint formula loses its digits."""


def equal_accuracy_test(values: ArrayLike, end: float = 1.0) -> PermutationTest:
    """Test "the mean is not below 0", one-sided, for independent values in [-1, 1].

    `end` is the largest value that there could be, on average over the prompts. A larger observed
    one replaces it, and 1 replaces 0: then everything was lost, and no gain has a size. `p_mid`
    counts half of the probability of the observed sum. Raises ServeEvalError for values outside
    [-1, 1].
    """
    import numpy

    distinct, shares = count_shares(values)
    n = int(numpy.size(values))
    mean = float(shares @ distinct)
    if not distinct.any():
        return PermutationTest(1.0, 1.0)
    if mean > 0.0:
        below = _chances_below(distinct, shares, -mean, n, sign=1.0, end=1.0)
        return PermutationTest(1.0 - (2.0 * below.p_mid - below.p_exact), 1.0 - below.p_mid)
    return _chances_below(distinct, shares, mean, n, sign=-1.0, end=end if end > 0.0 else 1.0)


def _chances_below(
    distinct: FloatArray, shares: FloatArray, mean: float, n: int, *, sign: float, end: float
) -> PermutationTest:
    """Return the chances that the mean of n draws is at most `mean`, which is 0 or less.

    The draws are from the likeliest distribution with mean 0. `sign` is 1 if `distinct` has a mean
    above 0, so that its negatives are drawn, else -1. The end is moved up to the grid of the
    values, if they have one.
    """
    import numpy

    mirrored = distinct if sign > 0.0 else -distinct[::-1]
    if (grid := _on_grid(distinct)) is not None:
        end = min(1.0, math.ceil(end * grid[1] - ON_GRID) / grid[1])
    end = max(end, -float(mirrored[0]))
    values, chances = likeliest(mirrored, shares if sign > 0.0 else shares[::-1], 0.0, -end)
    kept = chances > 0.0
    values, chances = -values[kept][::-1], chances[kept][::-1]
    chances = chances / chances.sum()
    if (steps := _on_grid(values)) is not None:
        whole, parts = steps
        if n * int(numpy.ptp(whole)) < MAX_GRID:
            return _convolve(whole, chances, n, mean * parts)
    return _approximate(values, chances, n, mean)


def _on_grid(values: FloatArray) -> tuple[IntArray, int] | None:
    """Return the values as whole numbers of steps, and the steps of a unit; None without a grid."""
    import numpy

    for parts in range(1, MAX_STEPS + 1):
        steps = values * parts
        if float(numpy.abs(steps - steps.round()).max()) <= ON_GRID:
            return steps.round().astype(numpy.int64), parts
    return None


def _convolve(steps: IntArray, chances: FloatArray, n: int, mean: float) -> PermutationTest:
    """Return the exact chances by the n-th power of the transform; `mean` is in steps."""
    import numpy

    low = int(steps.min())
    one = numpy.zeros(n * int(numpy.ptp(steps)) + 1)
    one[steps - low] = chances
    size = 1 << (len(one) - 1).bit_length()
    total = numpy.fft.irfft(numpy.fft.rfft(one, size) ** n, size).clip(min=0.0)
    observed = round(n * (mean - low))
    below, at = float(total[:observed].sum()), float(total[observed])
    return PermutationTest(min(1.0, below + at), min(1.0, below + at / 2.0))


def _approximate(values: FloatArray, chances: FloatArray, n: int, mean: float) -> PermutationTest:
    """Return the chance by the saddlepoint of the cumulant generating function."""
    import numpy
    from scipy.special import ndtr

    low = float(values.min())
    if mean <= low + PRECISION:
        at = float(chances[values <= low + PRECISION].sum()) ** n
        return PermutationTest(at, at / 2.0)

    def tilt(slope: float) -> tuple[float, FloatArray]:
        weights = chances * numpy.exp(slope * (values - low))
        total = float(weights.sum())
        return math.log(total) + slope * low, weights / total

    end = -1.0
    while float(tilt(end)[1] @ values) > mean:
        end *= 2.0
    start = 0.0
    while start - end > PRECISION * -end:
        slope = (start + end) / 2.0
        start, end = (slope, end) if float(tilt(slope)[1] @ values) > mean else (start, slope)
    cumulant, weights = tilt(start)
    spread = math.sqrt(float(weights @ (values - float(weights @ values)) ** 2))
    r = -math.sqrt(max(0.0, 2.0 * n * (start * mean - cumulant)))
    if r > -NEAR_MEAN:
        return PermutationTest(0.5, 0.5)
    u = start * spread * math.sqrt(n)
    p = float(ndtr(r)) + math.exp(-r * r / 2.0) / math.sqrt(2.0 * math.pi) * (1.0 / r - 1.0 / u)
    return PermutationTest(min(1.0, max(0.0, p)), min(1.0, max(0.0, p)))
