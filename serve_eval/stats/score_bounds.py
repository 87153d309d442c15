"""Bound paired differences by score tests: Tango's, generalised to bounded differences.

Source: Tango 1998, "Equivalence test and confidence interval for the difference in proportions for
the paired-sample design". Unlike the Wald interval it holds its level with few changed prompts.
With none at all it still gives the drop that n identical answers exclude: z^2 / (n + z^2). Unit:
proportions of prompts; negative is worse.

They allow scores of any grades and several runs. z of the hypothesis "the true mean is D" divides
the distance of the mean from D by the standard error that the data have if D is true: under the
likeliest distribution with mean D on the observed values and the two ends of the range. With the
values -1, 0 and 1 this is Tango's score (Tango 1998); for other values the likelihood is the
empirical one (Owen 1988, "Empirical likelihood ratio confidence intervals for a single
functional"). The ends of the range are part of the distribution even if they were not observed.
They keep few or no changes from proving anything, and a single answer of half a point from altering
the bounds. Unit: differences on a scale where the range is -1..1; negative is worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level, check_margin, float_row

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray


HALVINGS = 60  # an interval of width 2 shrinks below the spacing of floats near 1


def score_z(down: ArrayLike, up: ArrayLike, n: int, difference: float) -> FloatArray:
    """Return z of the hypothesis that the true difference is `difference`.

    Arrays of counts give arrays. z = (up - down - n D) / sqrt(n (2 q - D (1 + D))), where q, the
    proportion of prompts that became right, has its largest likelihood under D: the larger root of
    2 n q^2 - ((down + up)(1 + D) + 2 D (n - down)) q + up D (1 + D) = 0, kept in [max(0, D), (1 +
    D) / 2]. If the variance vanishes z is infinite, or 0 if the counts fit D exactly.
    """
    import numpy

    lost, won = numpy.asarray(down, dtype=numpy.float64), numpy.asarray(up, dtype=numpy.float64)
    linear = (lost + won) * (1.0 + difference) + 2.0 * difference * (n - lost)
    constant = won * difference * (1.0 + difference)
    root = (linear + numpy.sqrt(numpy.maximum(linear * linear - 8.0 * n * constant, 0.0))) / (
        4.0 * n
    )
    q = numpy.clip(root, max(0.0, difference), (1.0 + difference) / 2.0)
    variance = n * (2.0 * q - difference * (1.0 + difference))
    distance = won - lost - n * difference
    with numpy.errstate(divide="ignore", invalid="ignore"):
        z = distance / numpy.sqrt(numpy.maximum(variance, 0.0))
    return numpy.where(numpy.abs(distance) <= 1e-12 * n, 0.0, z)


def score_bounds(down: int, up: int, n: int, alpha: float) -> tuple[float, float]:
    """Return one-sided 1 - alpha bounds (lower, upper) of the true difference.

    Together they are a two-sided 1 - 2 alpha interval. Raises ServeEvalError for counts that do not
    fit n, or alpha outside (0, 1).
    """
    _check(down, up, n)
    check_level("alpha", alpha)
    return _lower(down, up, n, alpha), -_lower(up, down, n, alpha)


def score_noninferiority_p(down: int, up: int, n: int, margin: float) -> float:
    """Return p of "the true drop reaches the margin": small if such a drop is excluded.

    Raises as `score_bounds`.
    """
    _check(down, up, n)
    check_margin(margin)
    if margin >= 1.0:
        return 0.0  # a proportion cannot drop by more than everything
    from scipy.special import ndtr

    return float(ndtr(-score_z(down, up, n, -margin)))


def _lower(down: int, up: int, n: int, alpha: float) -> float:
    """Return the difference whose z equals the 1 - alpha quantile.

    It is found by halving: z falls as the difference grows.
    """
    from scipy.special import ndtri

    target = -float(ndtri(alpha))
    low, high = -1.0, (up - down) / n
    if target < 0.0:  # alpha above 1/2: the bound is above the estimate
        low, high = high, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if float(score_z(down, up, n, middle)) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _check(down: int, up: int, n: int) -> None:
    check_count("the number of prompts", n, 1)
    check_count("the number of prompts that became wrong", down)
    check_count("the number of prompts that became right", up)
    if down + up > n:
        raise ServeEvalError(
            f"{down} + {up} changed prompts are more than all {math.floor(n)}",
            hint="count each prompt once",
        )


MOST_STEPS = 80
PRECISION = 1e-12
LO = -1.0


def mean_score_z(values: ArrayLike, mean: float, n: int | None = None) -> float:
    """Return z of the hypothesis that the true mean is at most `mean`, for values in [-1, 1].

    z is negative if the mean of the values is below `mean`. `n` is the number of independent values
    if it is not that of all: the same answers may be among `values` in several arrangements.
    """
    distinct, shares = count_shares(values)
    return _z(distinct, shares, _size(values) if n is None else n, mean)


def mean_score_p(values: ArrayLike, mean: float, n: int | None = None) -> float:
    """Return p of "the true mean is at most `mean`": small if a mean this low is excluded."""
    if mean < LO:
        return 0.0
    from scipy.special import ndtr

    return float(ndtr(-mean_score_z(values, mean, n)))


def mean_score_lower_bound(values: ArrayLike, alpha: float, n: int | None = None) -> float:
    """Return the lower 1 - `alpha` bound of the mean; `n` is as in `mean_score_z`.

    Raises ServeEvalError for alpha outside (0, 1) or values outside [-1, 1].
    """
    check_level("alpha", alpha)
    from scipy.special import ndtri

    distinct, shares = count_shares(values)
    n, target = _size(values) if n is None else n, -float(ndtri(alpha))
    mean = float(shares @ distinct)

    def excess(value: float) -> float:
        return _z(distinct, shares, n, value) - target

    if target < 0.0:  # alpha above 1/2: the bound is above the estimate
        return _find_crossing(excess, mean, 1.0, mean)
    step = (target + 0.1) * math.sqrt(max(float(shares @ (distinct - mean) ** 2), 1.0 / n) / n)
    high, low = mean, max(LO, mean - step)
    while low > LO and excess(low) <= 0.0:
        step *= 2.0
        high, low = low, max(LO, low - step)
    return _find_crossing(excess, low, high, low)


def _find_crossing(
    falling: Callable[[float], float], low: float, high: float, start: float
) -> float:
    """Return the place in low..high at which a falling function is 0.

    The method is the secant within a bracket (Illinois).
    """
    at_low, at_high = falling(low), falling(high)
    if at_low <= 0.0:
        return start
    for _ in range(MOST_STEPS):
        finite = math.isfinite(at_low) and math.isfinite(at_high) and at_low > at_high
        middle = (
            (low * -at_high + high * at_low) / (at_low - at_high) if finite else (low + high) / 2.0
        )
        at_middle = falling(middle)
        if at_middle > 0.0:
            low, at_low, at_high = middle, at_middle, at_high / 2.0
        else:
            high, at_high, at_low = middle, at_middle, at_low / 2.0
        if high - low <= PRECISION or at_middle == 0.0 or abs(at_middle) <= PRECISION:
            return middle
    return (low + high) / 2.0


def count_shares(values: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values in ascending order, and the share of each.

    Raises ServeEvalError for values outside [-1, 1].
    """
    import numpy

    distinct, counts = numpy.unique(_check_values(values), return_counts=True)
    return distinct, counts / counts.sum()


def likeliest(
    distinct: FloatArray, shares: FloatArray, mean: float, lo: float = LO
) -> tuple[FloatArray, FloatArray]:
    """Return values and probabilities of the likeliest distribution with this mean.

    The mean is below that of the observed values, which are distinct and ascending. The
    probabilities are shares / (1 + k (x - mean)) with the k in (0, 1 / (mean - lo)] that gives the
    mean. If even the largest k leaves the mean too high, the rest of the probability is at `lo`,
    the end of the range, which is then not an observed value.
    """
    import numpy

    apart = distinct - mean
    if mean <= lo:
        return numpy.array([lo]), numpy.ones(1)
    most = 1.0 / (mean - lo)
    reaches = distinct[0] <= lo
    if not reaches and float(shares @ (apart / (1.0 + most * apart))) >= 0.0:
        known = shares / (1.0 + most * apart)
        rest = max(0.0, 1.0 - float(known.sum()))
        return numpy.concatenate([[lo], distinct]), numpy.concatenate([[rest], known])
    return distinct, shares / (1.0 + _root(apart, shares, most) * apart)


def _size(values: ArrayLike) -> int:
    import numpy

    return int(numpy.size(values))


def _check_values(values: ArrayLike) -> FloatArray:
    import numpy

    from serve_eval.errors import ServeEvalError

    row = float_row("the values", values)
    if float(numpy.abs(row).max()) > 1.0:
        raise ServeEvalError(
            "a value lies outside -1..1",
            hint="divide differences by the width of the metric's range",
        )
    return row


def _z(distinct: FloatArray, shares: FloatArray, n: int, mean: float) -> float:
    """Return z for ascending values `distinct` observed with these shares.

    It is mirrored if the mean of the values is below `mean`.
    """
    distance = float(shares @ distinct) - mean
    if abs(distance) <= 1e-12:
        return 0.0
    if distance < 0.0:
        distinct, shares, mean = -distinct[::-1], shares[::-1], -mean
    variance = _variance(distinct, shares, mean)
    return math.copysign(
        math.inf if variance <= 0.0 else abs(distance) * math.sqrt(n / variance), distance
    )


def _variance(distinct: FloatArray, shares: FloatArray, mean: float) -> float:
    """Return the variance of the likeliest distribution with this mean."""
    values, chances = likeliest(distinct, shares, mean)
    return float(chances @ (values - mean) ** 2)


def _root(apart: FloatArray, shares: FloatArray, most: float) -> float:
    """Return the k in (0, most) at which sum shares apart / (1 + k apart) is 0.

    The sum falls in k. The method is Newton's within a bracket. A step goes at most half of the way
    to an end: at `most` the sum may have a pole, near which Newton's steps are tiny and would
    look like convergence.
    """
    low, high, k = 0.0, most, 0.0
    for _ in range(MOST_STEPS):
        terms = apart / (1.0 + k * apart)
        value = float(shares @ terms)
        low, high = (k, high) if value > 0.0 else (low, k)
        step = value / float(shares @ terms**2)
        moved = min(max(k + step, (low + k) / 2.0), (high + k) / 2.0)
        if abs(moved - k) <= PRECISION * most:
            return moved
        k = moved
    return k
