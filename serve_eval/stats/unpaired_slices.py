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
    sum_inside,
)
from serve_eval.stats.permuted_losses import compute_permuted_p
from serve_eval.stats.slice_units import Units

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LEAST_GAP = 0.1
"""Smallest difference of the shares of lost samples inside and outside a slice that is named."""


def find_unpaired_slice(
    lost: ArrayLike,
    members: Any,
    strata: ArrayLike,
    *,
    level: float,
    clusters: ArrayLike | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> FoundSlice | None:
    """Return the slice in which more samples are lost than in the same strata outside, or None.

    `lost` is True for lost samples, `strata` has a number for each sample.
    `members` and `clusters` are as in `find_paired_slice`.
    """
    import numpy

    bad = numpy.asarray(lost, dtype=bool)
    inside = as_table(members, len(bad))
    codes = numpy.unique(numpy.asarray(strata), return_inverse=True)[1]
    units = Units(clusters, len(bad))
    kept = numpy.flatnonzero(units.large_enough(inside))
    if not len(kept) or not bad.any():
        return None
    inside = inside[kept]
    random, losses = numpy.random.default_rng(seed), bad.astype(numpy.float64)
    p, strength, expected = compute_permuted_p(losses, inside, codes, draws, random, clusters)
    within = sum_inside(losses, inside)
    excess, size = within - expected, inside.sum(axis=1)
    gap = within / size - (bad.sum() - within) / (len(bad) - size)
    enough = (excess >= LEAST_LOST) & (units.in_units(excess, inside, bad) >= LEAST_LOST)
    chosen = choose(strength, (p <= level) & enough & (gap >= LEAST_GAP))
    if chosen is None:
        return None
    return FoundSlice(
        place=int(kept[chosen]),
        p=float(p[chosen]),
        least_p=1.0 / (1.0 + draws),
        statistic=float(strength[chosen]),
        lost=round(float(within[chosen])),
        all_lost=int(bad.sum()),
    )
