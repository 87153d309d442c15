"""Test whether a slice loses more score than the same damage everywhere explains.

A uniform loss spoils each right answer with the same probability q, so that easy prompts lose more
than hard ones. Its distribution is simulated: as many losses as q explains are undone, the scores
of each prompt are exchanged between reference and candidate as under health, and each right answer
of the candidate is spoiled with probability q. Groups are undone, exchanged and spoiled as a whole.
The test is approximate, since q is an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from serve_eval.stats.largest_statistic import BLOCK, PROMISING, adjust, sum_inside

if TYPE_CHECKING:
    import numpy

    from serve_eval.stats.inputs import FloatArray
    from serve_eval.stats.slice_units import Units

FIRST_DRAWS = 499
"""Draws from which the standard deviations are taken; only if a slice is promising, more follow."""
LEAST_SPREAD = 0.05
"""Least standard deviation of a loss inside a slice, as a share of the largest change of a prompt.

Where every right answer is lost, all draws are equal, and only rounding tells them apart.
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
