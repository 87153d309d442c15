"""Test whether a router's choice of a worker had to do with the kind of prompt.

A router with affinity sends alike prompts to one server, and alike prompts are equally hard. The
number of pairs of answers with one worker and one kind of prompt is then larger than when the
workers are dealt out at random. The test permutes the workers over the answers (Fisher 1935; the
statistic is that of Pearson's test of independence, whose asymptotic distribution fails where most
cells hold an answer or two), and stops early where that is no rare case (Besag and Clifford 1991).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

PERMUTATIONS, AT_ONCE, ENOUGH = 999, 111, 20
"""Permutations at most, those that are looked at together, and how many that are at least as far
from independence as what was seen settle that it is not rare."""
MOST = 5000
"""Answers that are looked at, evenly spread over all: these show any dependence that moves a
count."""


def dependence(workers: Sequence[Hashable], kinds: Sequence[Hashable], *, seed: int = 0) -> float:
    """Return P(workers and kinds go together as much as they do | dealt out at random), of one pair
    per answer.

    At least 1 / (PERMUTATIONS + 1); 1 where there is only one worker or one kind. Raises
    ServeEvalError for sequences of different lengths.
    """
    if len(workers) != len(kinds):
        raise ServeEvalError(
            f"{len(workers)} workers and {len(kinds)} kinds are not one pair per answer"
        )
    import numpy

    step = max(1, -(-len(workers) // MOST))
    rows, columns = _codes(workers[::step]), _codes(kinds[::step])
    if not len(rows) or not rows.any() or not columns.any():
        return 1.0
    height, width = int(rows.max()) + 1, int(columns.max()) + 1
    expected = numpy.outer(numpy.bincount(rows), numpy.bincount(columns)).ravel()

    def statistics(dealt: NDArray[numpy.int64]) -> NDArray[numpy.float64]:
        """Return Pearson's statistic but for constants, of each row of workers."""
        first = numpy.arange(len(dealt))[:, None] * (height * width)
        counts = numpy.bincount(
            (first + dealt * width + columns).ravel(), minlength=len(dealt) * height * width
        )
        squares: NDArray[numpy.float64] = (counts.reshape(len(dealt), -1) ** 2 / expected).sum(
            axis=1
        )
        return squares

    seen, random, larger = (
        statistics(rows[None, :])[0] * (1.0 - 1e-12),
        numpy.random.default_rng(seed),
        0,
    )
    for tried in range(0, PERMUTATIONS, AT_ONCE):
        dealt = random.permuted(numpy.tile(rows, (AT_ONCE, 1)), axis=1)
        as_far = numpy.flatnonzero(statistics(dealt) >= seen)
        if larger + len(as_far) >= ENOUGH:
            return ENOUGH / (tried + int(as_far[ENOUGH - larger - 1]) + 1)
        larger += len(as_far)
    return (1 + larger) / (1 + PERMUTATIONS)


def _codes(names: Sequence[Hashable]) -> NDArray[numpy.int64]:
    """Number the different names in the order in which they come."""
    import numpy

    known: dict[Hashable, int] = {}
    return numpy.array([known.setdefault(name, len(known)) for name in names], dtype=numpy.int64)
