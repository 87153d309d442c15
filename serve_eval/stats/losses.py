"""Test whether even damage or another model explains which answers were lost.

The test is exact if, within a stratum, each prompt is as likely as any other to have each loss.
Prompts of one cluster may be lost together: the losses of a whole cluster are then permuted among
the clusters with as many prompts in the same strata.

A uniform loss spoils each right answer with the same probability q, so that easy prompts lose more
than hard ones. Its distribution is simulated: as many losses as q explains are undone, the scores
of each prompt are exchanged between reference and candidate as under health, and each right answer
of the candidate is spoiled with probability q. Groups are undone, exchanged and spoiled as a whole.
The test is approximate, since q is an estimate.

Another model is right or wrong on its own. It then loses answers wherever the reference is right,
such as on short prompts, and gains where the reference is wrong: a slice that loses more than
others may only be one in which the reference is better. Both functions take what the reference
answers as given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from serve_eval.stats.largest_statistic import (
    BLOCK,
    PROMISING,
    adjust,
    compute_p,
    split_rows,
    sum_inside,
)

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray
    from serve_eval.stats.largest_statistic import Units


def compute_permuted_p(
    losses: FloatArray,
    inside: Any,
    codes: IntArray,
    draws: int,
    random: numpy.random.Generator,
    clusters: ArrayLike | None,
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


FIRST_DRAWS = 499
"""Draws from which the standard deviations are taken; only if a slice is promising, more follow."""
LEAST_SPREAD = 0.05
"""Least standard deviation of a loss inside a slice, as a share of the largest change of a prompt.

If a run lost all right answers, all draws are equal, and only rounding errors differ.
"""


class UniformLoss(NamedTuple):
    """A uniform loss: the part of the losses to undo, and the probability to spoil an answer.

    A spoiled answer scores `worst`.
    """

    undone: float
    q: float
    worst: float


def reject_uniform_loss(
    values: FloatArray,
    change: FloatArray,
    inside: Any,
    worst: float,
    random: numpy.random.Generator,
    *,
    draws: int,
    units: Units,
) -> FloatArray:
    """Return each slice's p of losing no more than by a uniform loss, adjusted for all slices.

    `values` has the exchangeable scores of each prompt in a row, the candidate's first; `change` is
    the loss of each prompt. Prompts of one of the `units` are exchanged, mended and spoiled
    together.
    """
    import numpy

    columns = values.shape[1]
    net, all_lost = max(0.0, float(change.sum())), float(change[change > 0.0].sum())
    undone = min(1.0, net / all_lost) if all_lost else 0.0
    spoilable = values.mean(axis=1) + undone * numpy.maximum(change, 0.0) / columns - worst
    total = max(float(spoilable.sum()), 1e-12)
    damage = UniformLoss(undone, min(1.0, net / total), worst)
    expected = sum_inside(spoilable / total, inside)
    rows = max(1, BLOCK // values.size)

    def draw(count: int) -> FloatArray:
        """Return the losses inside the slices of `count` draws, beyond the expected ones."""
        sizes = [min(rows, count - start) for start in range(0, count, rows)]
        blocks = (_draw(values, change, damage, size, random, units) for size in sizes)
        return numpy.concatenate([_beyond(one, inside, expected) for one in blocks])

    drawn = draw(FIRST_DRAWS)
    least = max(LEAST_SPREAD * float(numpy.abs(change).max()), 1e-12)
    centre, spread = drawn.mean(axis=0), numpy.maximum(drawn.std(axis=0), least)
    strength = (_beyond(change, inside, expected) - centre) / spread
    largest = ((drawn - centre) / spread).max(axis=1)
    p = adjust(strength, largest)
    if p.min() > PROMISING or draws <= FIRST_DRAWS:
        return p
    more = ((draw(draws - FIRST_DRAWS) - centre) / spread).max(axis=1)
    return adjust(strength, numpy.concatenate([largest, more]))


def _beyond(losses: FloatArray, inside: Any, expected: FloatArray) -> FloatArray:
    """Return the net loss inside each slice beyond its part of the whole."""
    import numpy

    whole: FloatArray = losses.sum(axis=-1)
    return numpy.asarray(sum_inside(losses, inside) - numpy.multiply.outer(whole, expected))


def _draw(
    values: FloatArray,
    change: FloatArray,
    damage: UniformLoss,
    size: int,
    random: numpy.random.Generator,
    units: Units,
) -> FloatArray:
    """Return `size` rows of losses per prompt under a uniform loss."""
    import numpy

    values, change = values.astype(numpy.float32), change.astype(numpy.float32)
    n, columns = values.shape
    places, shape, each = numpy.arange(n), (size, units.count), units.numbers
    own = numpy.broadcast_to(values[:, 0], (size, n)).copy()
    instead = values[places, random.integers(1, columns, shape, dtype=numpy.int8)[:, each]]
    mended = (change > 0.0) & (random.random(shape, dtype=numpy.float32) < damage.undone)[:, each]
    own[mended] = instead[mended]
    picked = random.integers(0, columns, shape, dtype=numpy.int8)[:, each]
    after = numpy.where(picked == 0, own, values[places, picked])
    others = (own + values[:, 1:].sum(axis=1) - after) / (columns - 1)
    spoiled = (random.random(shape, dtype=numpy.float32) < damage.q)[:, each]
    found: FloatArray = others - numpy.where(spoiled, numpy.minimum(after, damage.worst), after)
    return found


MOST_STRATA = 4
"""Strata of the reference's scores: its values if there are no more, else quarters."""
LEAST_GAINED, LEAST_RATIO = 5, 0.75
"""Least number of answers that turned right, and of the rate at which they do to the rate of right
answers elsewhere, from which a candidate is like another model."""


def reject_other_model(
    reference: FloatArray,
    change: FloatArray,
    inside: Any,
    draws: int,
    random: numpy.random.Generator,
    clusters: ArrayLike | None,
) -> FloatArray:
    """Return each slice's p of losing no more than by another model, adjusted for all slices.

    `reference` has the mean score of each prompt, `change` its loss. The losses are permuted among
    prompts of about the same score of the reference, which also covers the same damage everywhere.
    Prompts of one of the `clusters` stay together.
    """
    return compute_permuted_p(change, inside, _stratify(reference), draws, random, clusters)[0]


def is_like_another(was_right: ArrayLike, is_right: ArrayLike) -> bool:
    """Return True if wrong answers of the reference turned right almost as often as others stayed.

    Both have one value per prompt: True for a right answer of the reference, or of the candidate.
    """
    import numpy

    before, after = numpy.asarray(was_right, dtype=bool), numpy.asarray(is_right, dtype=bool)
    gained, wrong = int((after & ~before).sum()), int((~before).sum())
    kept, right = int((after & before).sum()), int(before.sum())
    return gained >= LEAST_GAINED and gained * right >= LEAST_RATIO * kept * wrong


def _stratify(scores: FloatArray) -> IntArray:
    """Return the number of the stratum of each score."""
    import numpy

    values, codes = numpy.unique(scores, return_inverse=True)
    if len(values) <= MOST_STRATA:
        return numpy.asarray(codes)
    ends = numpy.quantile(scores, numpy.arange(1, MOST_STRATA) / MOST_STRATA)
    return numpy.asarray(numpy.unique(numpy.searchsorted(ends, scores), return_inverse=True)[1])
