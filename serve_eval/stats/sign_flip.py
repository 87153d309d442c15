"""The sign-flip permutation test: without a drop, each pair's difference could as well have had the other sign.

Source: Fisher 1935, "The Design of Experiments"; the count plus one of Phipson and Smyth 2010 for drawn flips. Makes no
assumption on the shape of the differences, and is a little conservative where most of them are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, float_row
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.paired_t import unit_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

ENUMERATED = 16  # differences up to which all 2^k flips are counted
TIE = 1e-12  # sums closer than this share of the whole are equal
CHUNK = 4_000_000  # signs held in memory at once


def sign_flip_p(
    differences: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: IntArray | None = None,
    *,
    draws: int = 9999,
    seed: int = 0,
) -> float:
    """One-sided p of "no drop": the share of sign flips whose weighted sum is as low as the observed one.

    Clusters are flipped as a whole. Differences of 0 do not matter. Differences of one size give the exact binomial
    value (McNemar's exact p), up to 16 of them are enumerated, more are drawn: (hits + 1) / (draws + 1) from a
    generator with the fixed `seed`, after sorting, so that neither the order of the samples nor a second call changes
    p. Raises ServeEvalError for missing or infinite differences.
    """
    import numpy

    check_count("the number of draws", draws, 1)
    row = float_row("the differences", differences)
    if weights is not None:
        row = row * numpy.asarray(weights, dtype=numpy.float64)
    if not numpy.isfinite(row).all():
        raise ServeEvalError("weights must be finite numbers", hint="give each prompt one weight, 0 or more")
    sums = unit_sums(row, clusters)
    changed = numpy.sort(sums[sums != 0.0])
    if len(changed) == 0:
        return 1.0
    sizes = numpy.abs(changed)
    if sizes.max() - sizes.min() <= TIE * sizes.max():
        down = int((changed < 0.0).sum())
        return mcnemar(down, len(changed) - down).p_exact
    limit = float(changed.sum() + TIE * sizes.sum())
    if len(changed) <= ENUMERATED:
        flips = numpy.arange(2 ** len(changed))[:, numpy.newaxis] >> numpy.arange(len(changed)) & 1
        return float(((1.0 - 2.0 * flips) @ sizes <= limit).mean())
    hits = _drawn_hits(numpy.sort(sizes), limit, draws, seed)
    return (hits + 1) / (draws + 1)


def _drawn_hits(sizes: FloatArray, limit: float, draws: int, seed: int) -> int:
    """How many of `draws` random flips have a sum of at most `limit`.

    Equal sizes are drawn together as one binomial number, which makes scores with few different values cheap.
    """
    import numpy

    random = numpy.random.default_rng(seed)
    values, counts = numpy.unique(sizes, return_counts=True)
    alone, several = values[counts == 1], counts > 1
    sums = numpy.zeros(draws)
    for value, count in zip(values[several], counts[several], strict=True):
        sums += value * (2.0 * random.binomial(count, 0.5, draws) - count)
    if len(alone):
        rows = max(1, CHUNK // len(alone))
        for start in range(0, draws, rows):
            size = min(rows, draws - start)
            bits = numpy.unpackbits(random.integers(0, 256, (size, -(-len(alone) // 8)), numpy.uint8), axis=1)
            chosen = bits[:, : len(alone)].astype(numpy.float32)
            sums[start : start + size] += 2.0 * (chosen @ alone.astype(numpy.float32)) - alone.sum()
    return int((sums <= limit).sum())
