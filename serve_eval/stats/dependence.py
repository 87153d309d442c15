"""Test whether a router's choice of worker depended on the kind of prompt.

A router with affinity sends similar prompts to one server, and similar prompts are equally hard.
The number of pairs of answers that share both worker and kind of prompt is then larger than if
workers are assigned at random. The test permutes the workers over the answers (Fisher 1935; the
statistic is that of Pearson's test of independence, whose asymptotic distribution fails if most
cells hold an answer or two). It stops early if the observed dependence is not rare (Besag and
Clifford 1991).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

PERMUTATIONS, AT_ONCE, ENOUGH = 999, 111, 20
"""Maximum number of permutations, and number that is computed together. The test stops as soon as
ENOUGH permutations are at least as far from independence as the observation."""
MOST = 5000
"""Answers that are used, evenly spread over all: enough to show any dependence that affects a
count."""


def dependence(workers: Sequence[Hashable], kinds: Sequence[Hashable], *, seed: int = 0) -> float:
    """Return P(workers and kinds are as dependent as observed | assigned at random).

    There is one pair of worker and kind per answer. The result is at least 1 / (PERMUTATIONS + 1);
    1 if there is only one worker or one kind. Raises ServeEvalError for sequences of different
    lengths.
    """
    if len(workers) != len(kinds):
        raise ServeEvalError(
            f"{len(workers)} workers and {len(kinds)} kinds do not make one pair per answer"
        )
    import numpy

    step = max(1, -(-len(workers) // MOST))
    rows, columns = _codes(workers[::step]), _codes(kinds[::step])
    if not len(rows) or not rows.any() or not columns.any():
        return 1.0
    height, width = int(rows.max()) + 1, int(columns.max()) + 1
    expected = numpy.outer(numpy.bincount(rows), numpy.bincount(columns)).ravel()

    def statistics(dealt: NDArray[numpy.int64]) -> NDArray[numpy.float64]:
        """Return Pearson's statistic, up to constants, of each row of workers."""
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
    """Return a number for each name, in the order of first appearance."""
    import numpy

    known: dict[Hashable, int] = {}
    return numpy.array([known.setdefault(name, len(known)) for name in names], dtype=numpy.int64)
