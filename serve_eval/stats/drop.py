"""Test whether a drop is proven, by the test that fits the pairs.

A lower value has two innocent explanations. One is the endpoint's own noise, under which each run
of either side is equally likely to be the candidate (`exchange`). The other is another build of
equal accuracy: it permanently alters some answers and loses as many as it gains, it is steadier, or
it solves other prompts (`equal_accuracy`). With several runs per side these are two tests, and a
drop is proven only if neither explains it: `permutation` uses the larger p. For right/wrong answers
of one run per side, both are McNemar's test.

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
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.paired_t import (
    average_largest_gain,
    paired_t,
    scale_to_largest,
    scale_to_range,
)
from serve_eval.stats.pairs import Pairs
from serve_eval.stats.permutation import PermutationTest, exchange_test, sign_flip_test
from serve_eval.stats.repeats import inflate_p
from serve_eval.stats.score_bounds import PRECISION, count_shares, likeliest
from serve_eval.stats.sign_tests import mcnemar

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.finding import Range
    from serve_eval.stats.inputs import FloatArray, IntArray


class Method(StrEnum):
    """The test for a drop.

    AUTO is mid-p McNemar for plain right/wrong pairs and PERMUTATION for all others. EXCHANGE tests
    for the same endpoint alone: it has more power, but too often reports a drop for a build that
    permanently changes answers. PAIRED_T is valid only for many prompts and one run per side.
    """

    AUTO = "auto"
    MCNEMAR_MIDP = "mcnemar_midp"
    MCNEMAR_EXACT = "mcnemar_exact"
    PERMUTATION = "permutation"
    EXCHANGE = "exchange"
    SIGN_FLIP = "signflip"
    PAIRED_T = "paired_t"


@dataclass(frozen=True, slots=True)
class DropTest:
    """The result of the test of a drop.

    `mean` and `se` are of the complete pairs, in the unit of the scores; negative is worse.
    `p_range` holds p with every missing score at its worst and at its best for the candidate; `p`
    is its upper end, so that a drop is proven only if it is proven for any value of the missing
    answers. `p_exact` is p without the mid-p correction; None for the t test, which has `df`.
    Fields that need two independent pairs are None if there are fewer.
    """

    method: Method
    mean: float
    se: float | None
    df: int | None
    p: float | None
    p_exact: float | None
    p_range: Range | None


def drop_test(pairs: Pairs, method: str = Method.AUTO) -> DropTest:
    """Test "the candidate is worse", one-sided.

    Raises ServeEvalError for an unknown method or one that does not fit.
    """
    import numpy

    chosen = _method(pairs, method)
    kept = pairs.complete & (pairs.weights > 0.0)
    if not kept.any():
        raise ServeEvalError(
            "no complete pair has a weight above 0", hint="check the weights and the failures"
        )
    mean, se, df = float(numpy.average(pairs.worst[kept], weights=pairs.weights[kept])), None, None
    codes = None if pairs.clusters is None else pairs.clusters[kept]
    if (int(kept.sum()) if codes is None else len(numpy.unique(codes))) >= 2:
        known = paired_t(pairs.worst[kept], pairs.weights[kept], codes)
        se, df = known.se, known.df if chosen is Method.PAIRED_T else None
    if pairs.units < 2:
        return DropTest(chosen, mean, se, df, None, None, None)
    if pairs.missing == 0:
        p, exact = _p_values(pairs, chosen, at_best=False)
        return DropTest(chosen, mean, se, df, p, exact, (p, p))
    if not math.isfinite(pairs.span):
        return DropTest(chosen, mean, se, df, 1.0, None, (0.0, 1.0))
    at_worst, _ = _p_values(pairs, chosen, at_best=False)
    at_best, exact = _p_values(pairs, chosen, at_best=True)
    ends = min(at_worst, at_best), max(at_worst, at_best)
    return DropTest(chosen, mean, se, df, ends[1], exact, ends)


def inflate(test: DropTest, inflation: float) -> DropTest:
    """Return the test with its standard error multiplied by `inflation`.

    This allows for differences between whole runs (`run_effects`).
    """
    if inflation == 1.0 or test.p is None or test.p_range is None:
        return test
    low, high = test.p_range
    return replace(
        test,
        se=None if test.se is None else inflation * test.se,
        p=inflate_p(test.p, inflation),
        p_exact=None if test.p_exact is None else inflate_p(test.p_exact, inflation),
        p_range=(inflate_p(low, inflation), inflate_p(high, inflation)),
    )


def _method(pairs: Pairs, method: str) -> Method:
    try:
        chosen = Method(method)
    except ValueError as error:
        raise ServeEvalError(
            f"{method!r} is not a paired test", hint=f"choose one of {', '.join(Method)}"
        ) from error
    if chosen is Method.AUTO:
        return Method.MCNEMAR_MIDP if pairs.binary else Method.PERMUTATION
    if chosen in (Method.MCNEMAR_MIDP, Method.MCNEMAR_EXACT) and not pairs.binary:
        raise ServeEvalError(
            "McNemar's test needs right/wrong answers of one run per side, without weights or"
            " clusters",
            hint="use method auto, which uses the permutation test here",
        )
    return chosen


def _p_values(pairs: Pairs, method: Method, *, at_best: bool) -> tuple[float, float | None]:
    """Return p, and p without the mid-p correction.

    Missing scores are at their best or worst for the candidate.
    """
    differences = pairs.best if at_best else pairs.worst
    if method is Method.PAIRED_T:
        return paired_t(differences, pairs.weights, pairs.clusters).p, None
    if method in (Method.MCNEMAR_MIDP, Method.MCNEMAR_EXACT):
        test = mcnemar(int((differences < 0.0).sum()), int((differences > 0.0).sum()))
        return test.p_mid if method is Method.MCNEMAR_MIDP else test.p_exact, test.p_exact
    tests: list[PermutationTest] = []
    weights = pairs.weights if pairs.weighted else None
    single = pairs.reference_runs == pairs.candidate_runs == 1  # both hypotheses are then the same
    if method is Method.EXCHANGE or (method is Method.PERMUTATION and not single):
        runs = pairs.fill_runs(at_best=at_best)
        tests.append(exchange_test(runs, pairs.candidate_runs, weights, pairs.clusters))
    if method is Method.PERMUTATION and not single:
        tests.append(_test_equal_accuracy(pairs, differences, at_best=at_best))
    elif method in (Method.SIGN_FLIP, Method.PERMUTATION):
        tests.append(sign_flip_test(differences, weights, pairs.clusters))
    return max(test.p_mid for test in tests), max(test.p_exact for test in tests)


def _test_equal_accuracy(
    pairs: Pairs, differences: FloatArray, *, at_best: bool
) -> PermutationTest:
    """Test the differences of the independent units, scaled to [-1, 1]."""
    if pairs.far_ends or not math.isfinite(pairs.span):
        return equal_accuracy_test(scale_to_largest(pairs, differences))
    values, _ = scale_to_range(pairs, differences)
    return equal_accuracy_test(values, average_largest_gain(pairs, at_best=at_best))


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
