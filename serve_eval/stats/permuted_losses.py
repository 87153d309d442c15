"""Permute losses among prompts of the same stratum, and compare the sums inside slices.

The test is exact if, within a stratum, each prompt is as likely as any other to have each loss.
Prompts of one cluster may be lost together: the losses of a whole cluster are then permuted among
the clusters with as many prompts in the same strata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serve_eval.stats.largest_statistic import compute_p, split_rows, sum_inside

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray


def compute_permuted_p(
    losses: FloatArray,
    inside: Any,
    codes: IntArray,
    draws: int,
    random: numpy.random.Generator,
    clusters: ArrayLike | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return of each slice the adjusted p, the standardised loss inside, and the expected loss.

    `inside` is a table of slices, `codes` has a number from 0 on for the stratum of each prompt.
    `clusters` has a number for each prompt, the same for prompts that may be lost together.
    """
    import numpy

    expected, spread = _moments(losses, inside, codes)
    strata = _list_exchangeable(codes, clusters)

    def permute(size: int) -> FloatArray:
        """Return the statistics of `size` permutations."""
        counts = [len(range(size)[some]) for some in split_rows(size, len(losses))]
        drawn = (_permute(losses, strata, count, random) for count in counts)
        sums = numpy.concatenate([sum_inside(one, inside) for one in drawn])
        return numpy.asarray((sums - expected) / spread)

    strength = (sum_inside(losses, inside) - expected) / spread
    return compute_p(strength, permute, draws, len(losses)), strength, expected


def _moments(losses: FloatArray, inside: Any, codes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the loss inside each slice, by permutation.

    They are those of a sample without replacement from each stratum.
    """
    import numpy

    centre, variance = numpy.zeros(inside.shape[0]), numpy.zeros(inside.shape[0])
    for code in range(int(codes.max()) + 1):
        here = codes == code
        n, size = int(here.sum()), sum_inside(here, inside)
        centre += size * losses[here].mean()
        if n > 1:
            variance += losses[here].var() * size * (n - size) / (n - 1)
    return centre, numpy.sqrt(numpy.maximum(variance, 1e-6))


def _list_exchangeable(codes: IntArray, clusters: ArrayLike | None) -> list[IntArray]:
    """Return tables of places, of which the rows can be exchanged: prompts, or whole clusters.

    The prompts of a cluster are in the order of their strata.
    """
    import numpy

    if clusters is None:
        return [numpy.flatnonzero(codes == code)[:, None] for code in range(int(codes.max()) + 1)]
    names = numpy.asarray(clusters)
    order = numpy.lexsort((codes, names))
    ends = numpy.flatnonzero(numpy.diff(names[order])) + 1
    alike: dict[tuple[int, ...], list[IntArray]] = {}
    for places in numpy.split(order, ends):
        alike.setdefault(tuple(codes[places].tolist()), []).append(places)
    return [numpy.stack(rows) for rows in alike.values()]


def _permute(
    losses: FloatArray, strata: list[IntArray], size: int, random: numpy.random.Generator
) -> NDArray[numpy.float32]:
    """Return `size` rows of losses, with the rows of each table of places permuted."""
    import numpy

    drawn = numpy.empty((size, len(losses)), dtype=numpy.float32)
    for places in strata:
        values = losses[places].astype(numpy.float32)
        if places.shape[1] == 1:
            rows = numpy.broadcast_to(values[:, 0], (size, len(places)))
            drawn[:, places[:, 0]] = random.permuted(rows, axis=1)
            continue
        rows = numpy.broadcast_to(numpy.arange(len(places)), (size, len(places)))
        drawn[:, places] = values[random.permuted(rows, axis=1)]
    return drawn
