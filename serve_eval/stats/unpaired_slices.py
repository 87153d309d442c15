"""Find the slice of the samples in which more are lost than elsewhere, without a reference.

Lost samples are permuted within strata. This is exact if, within a stratum, a slice does not depend
on how hard a prompt is: true for the time in a run of random order, and for the length of a prompt
modulo a block among prompts of similar length. A subject, a length or a stop reason comes with the
difficulty and must not be tested so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serve_eval.stats.largest_statistic import (
    DRAWS,
    LEAST_LOST,
    FoundSlice,
    as_table,
    choose,
    compute_p,
    is_large_enough,
    split_rows,
    sum_inside,
)

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray
    from serve_eval.stats.largest_statistic import BoolArray

LEAST_GAP = 0.1
"""Smallest difference of the shares of lost samples inside and outside a slice that is named."""


def find_unpaired_slice(
    lost: ArrayLike,
    members: Any,
    strata: ArrayLike,
    *,
    level: float,
    draws: int = DRAWS,
    seed: int = 0,
) -> FoundSlice | None:
    """Return the slice in which more samples are lost than in the same strata outside, or None.

    `lost` is True for lost samples, `strata` has a number for each sample.
    `members` is as in `find_paired_slice`.
    """
    import numpy

    bad = numpy.asarray(lost, dtype=bool)
    inside = as_table(members, len(bad))
    codes = numpy.unique(numpy.asarray(strata), return_inverse=True)[1]
    kept = numpy.flatnonzero(is_large_enough(inside))
    if not len(kept) or not bad.any():
        return None
    inside = inside[kept]
    expected, spread = _moments(bad, inside, codes)
    random = numpy.random.default_rng(seed)

    def permute(size: int) -> FloatArray:
        """Return the statistics of `size` permutations."""
        drawn = _permute(bad, codes, size, random)
        parts = [sum_inside(drawn[some], inside) for some in split_rows(size, len(bad))]
        return (numpy.concatenate(parts) - expected) / spread

    within = sum_inside(bad, inside)
    strength = (within - expected) / spread
    p = compute_p(strength, permute, draws, len(bad))
    excess, size = within - expected, inside.sum(axis=1)
    gap = within / size - (bad.sum() - within) / (len(bad) - size)
    chosen = choose(strength, (p <= level) & (excess >= LEAST_LOST) & (gap >= LEAST_GAP))
    if chosen is None:
        return None
    return FoundSlice(
        place=int(kept[chosen]),
        p=float(p[chosen]),
        statistic=float(strength[chosen]),
        lost=round(float(within[chosen])),
        all_lost=int(bad.sum()),
    )


def _moments(bad: BoolArray, inside: Any, codes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the lost samples inside each slice, by permutation.

    In each stratum the number is hypergeometric.
    """
    import numpy

    centre, variance = numpy.zeros(inside.shape[0]), numpy.zeros(inside.shape[0])
    for code in range(int(codes.max()) + 1):
        here = codes == code
        n, lost, size = int(here.sum()), int(bad[here].sum()), sum_inside(here, inside)
        centre += size * lost / n
        if n > 1:
            variance += lost * (n - lost) * size * (n - size) / (n * n * (n - 1))
    return centre, numpy.sqrt(numpy.maximum(variance, 1e-6))


def _permute(
    bad: BoolArray, codes: IntArray, size: int, random: numpy.random.Generator
) -> NDArray[numpy.int8]:
    """Return `size` rows of lost samples, permuted within strata."""
    import numpy

    drawn = numpy.empty((size, len(bad)), dtype=numpy.int8)
    for code in range(int(codes.max()) + 1):
        places = numpy.flatnonzero(codes == code)
        rows = numpy.broadcast_to(bad[places].astype(numpy.int8), (size, len(places)))
        drawn[:, places] = random.permuted(rows, axis=1)
    return drawn
