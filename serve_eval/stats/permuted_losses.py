"""Permute losses among prompts of the same stratum, and compare the sums inside slices.

The test is exact if, within a stratum, each prompt is as likely as any other to have each loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve_eval.stats.largest_statistic import compute_p, sum_inside, transpose

if TYPE_CHECKING:
    import numpy

    from serve_eval.stats.inputs import FloatArray, IntArray
    from serve_eval.stats.largest_statistic import SingleArray


def compute_permuted_p(
    losses: FloatArray,
    inside: SingleArray,
    codes: IntArray,
    draws: int,
    random: numpy.random.Generator,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return of each slice the adjusted p, the standardised loss inside, and the expected loss.

    `codes` has a number from 0 on for the stratum of each prompt.
    """
    expected, spread = _moments(losses, inside, codes)
    columns_first = transpose(inside)

    def permute(size: int) -> FloatArray:
        """Return the statistics of `size` permutations."""
        drawn = _permute(losses, codes, size, random)
        return (sum_inside(drawn, columns_first) - expected) / spread

    strength = (sum_inside(losses, columns_first) - expected) / spread
    return compute_p(strength, permute, draws, len(losses)), strength, expected


def _moments(
    losses: FloatArray, inside: SingleArray, codes: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the loss inside each slice, by permutation.

    They are those of a sample without replacement from each stratum.
    """
    import numpy

    centre, variance = numpy.zeros(inside.shape[1]), numpy.zeros(inside.shape[1])
    for code in range(int(codes.max()) + 1):
        here = codes == code
        n, size = int(here.sum()), inside[here].sum(axis=0)
        centre += size * losses[here].mean()
        if n > 1:
            variance += losses[here].var() * size * (n - size) / (n - 1)
    return centre, numpy.sqrt(numpy.maximum(variance, 1e-6))


def _permute(
    losses: FloatArray, codes: IntArray, size: int, random: numpy.random.Generator
) -> SingleArray:
    """Return `size` rows of losses, permuted within strata."""
    import numpy

    drawn = numpy.empty((size, len(losses)), dtype=numpy.float32)
    for code in range(int(codes.max()) + 1):
        places = numpy.flatnonzero(codes == code)
        rows = numpy.broadcast_to(losses[places].astype(numpy.float32), (size, len(places)))
        drawn[:, places] = random.permuted(rows, axis=1)
    return drawn
