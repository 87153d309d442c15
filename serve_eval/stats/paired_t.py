"""Test and scale paired differences with weights and clusters.

It is for scores that are not right/wrong or are averages of several runs. Source: Miller 2024,
"Adding Error Bars to Evals" (paired differences, clustered standard errors), with the small-sample
factor G / (G - 1) of the CR1 estimator, under which the unclustered case is exactly Student's
paired t test. Unit: that of the differences; negative is worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_level, check_margin, float_row
from serve_eval.stats.pairs import Pairs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray


# A standard error below this share of the largest difference is a rounding error: all differences
# are equal.
ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class PairedT:
    """Weighted mean difference, its standard error and its degrees of freedom (clusters - 1)."""

    mean: float
    se: float
    df: int

    @property
    def p(self) -> float:
        """One-sided p of "no drop": small if the candidate is worse.

        With se 0 it is 0 for a drop and 1 otherwise.
        """
        return self._chance_below(self.mean)

    def noninferiority_p(self, margin: float) -> float:
        """Return p of "the true drop reaches the margin"."""
        check_margin(margin)
        return self._chance_below(-(self.mean + margin))

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Return one-sided 1 - alpha bounds (lower, upper) of the true mean difference."""
        check_level("alpha", alpha)
        from scipy.special import stdtrit

        reach = -float(stdtrit(self.df, alpha)) * self.se
        return self.mean - reach, self.mean + reach

    def _chance_below(self, distance: float) -> float:
        if self.se == 0.0:
            return 0.0 if distance < 0.0 else 1.0
        from scipy.special import stdtr

        return float(stdtr(self.df, distance / self.se))


def paired_t(
    differences: ArrayLike, weights: ArrayLike | None = None, clusters: IntArray | None = None
) -> PairedT:
    """Return the weighted mean difference and its clustered standard error.

    Mean = sum w D; se^2 = G / (G - 1) sum over clusters of (sum in the cluster of w (D - mean))^2,
    with sum w = 1. Without clusters each difference is its own cluster. Prompts of weight 0 do not
    count as evidence. Raises ServeEvalError for missing or infinite differences, and for fewer than
    two clusters, since one cannot show a spread.
    """
    import numpy

    row = float_row("the differences", differences)
    shares = (
        numpy.ones(len(row)) if weights is None else numpy.asarray(weights, dtype=numpy.float64)
    )
    used = shares > 0.0
    row, shares = row[used], shares[used] / shares.sum()
    codes = None if clusters is None else numpy.unique(clusters[used], return_inverse=True)[1]
    groups = len(row) if codes is None else int(codes.max(initial=-1)) + 1
    if groups < 2:
        raise ServeEvalError(
            f"a spread cannot be estimated from {groups} independent pairs",
            hint="evaluate at least two prompts",
        )
    if (row == row[0]).all():
        return PairedT(mean=float(row[0]), se=0.0, df=groups - 1)
    mean = float(shares @ row)
    sums = unit_sums(shares * (row - mean), codes)
    se = float(numpy.sqrt(groups / (groups - 1) * (sums @ sums)))
    return PairedT(
        mean=mean, se=0.0 if se <= ROUNDING * float(numpy.abs(row).max()) else se, df=groups - 1
    )


def unit_sums(values: FloatArray, clusters: IntArray | None) -> FloatArray:
    """Return the sum within each cluster; the values themselves if there are no clusters."""
    import numpy

    if clusters is None:
        return values
    sums: FloatArray = numpy.bincount(clusters, weights=values).astype(numpy.float64)
    return sums


def scale_to_range(pairs: Pairs, differences: FloatArray) -> tuple[FloatArray, float]:
    """Return one value in [-1, 1] per row of `differences` and unit, and a factor.

    The last axis of `differences` holds the prompts, the others hold repeats. The factor turns the
    mean of the values into the weighted mean difference. A unit of small weight uses a small part
    of the range: x = (sum in the unit of w d) / (span * largest unit weight), and the weighted mean
    difference is mean(x) * number of units * largest unit weight * span. Values are rounded, so
    that equal ones are equal. With far ends, prompts are the units: the range of a cluster would be
    so wide that 2000 unchanged answers exclude nothing.
    """
    sums, shares = _sum_units(pairs, differences, clustered=not pairs.far_ends)
    largest = float(shares.max())
    return _round(sums / (pairs.span * largest)), len(shares) * largest * pairs.span


def scale_to_largest(pairs: Pairs, differences: FloatArray) -> FloatArray:
    """Return one value per unit in [-1, 1], where 1 is the largest value that was observed.

    It is for scores without a range, or with an end far beyond them.
    """
    import numpy

    sums, _ = _sum_units(pairs, differences, clustered=True)
    largest = float(numpy.abs(sums).max())
    return _round(sums / largest) if largest > 0.0 else sums


def average_largest_gain(pairs: Pairs, *, at_best: bool) -> float:
    """Return the mean over units of the largest gain that there could be, as `scale_to_range`.

    A prompt gains most if all answers of one side were others: the candidate's the best ones, or
    the reference's the worst.
    """
    import numpy

    rows = pairs.fill_runs(at_best=at_best)
    good, bad = (pairs.good, pairs.bad) if pairs.good > pairs.bad else (-pairs.good, -pairs.bad)
    before, after = (side.mean(axis=0) for side in numpy.split(rows, [pairs.reference_runs]))
    return float(scale_to_range(pairs, numpy.maximum(good - before, after - bad))[0].mean())


def _sum_units(
    pairs: Pairs, differences: FloatArray, *, clustered: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted sums of the units, and the weight of each; all weights sum to 1."""
    import numpy

    used = pairs.weights > 0.0
    shares = pairs.weights[used] / pairs.weights[used].sum()
    weighted = shares * differences[..., used]
    if pairs.clusters is None or not clustered:
        return weighted, shares
    codes = numpy.unique(pairs.clusters[used], return_inverse=True)[1]
    sums = numpy.apply_along_axis(lambda row: unit_sums(row, codes), -1, weighted)
    return sums, unit_sums(shares, codes)


def _round(values: FloatArray) -> FloatArray:
    import numpy

    rounded: FloatArray = numpy.clip(values.round(12), -1.0, 1.0)
    return rounded
