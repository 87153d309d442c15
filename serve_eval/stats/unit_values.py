"""Scale differences to independent values in [-1, 1], one per prompt or cluster of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve_eval.stats.paired_t import unit_sums
from serve_eval.stats.pairs import Pairs

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray


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
