"""Exact tests of "all are alike": the distribution of a worker's number of bad answers.

With the margins of a table fixed, that number is hypergeometric (Fisher 1934). Over several tables
or blocks the distribution of the sum is the convolution of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_Part = tuple[int, "NDArray[numpy.float64]"]
"""A random number: its least value, and the probabilities of that and the values above it."""


def no_worse(tables: Iterable[tuple[int, int, int, int]]) -> float:
    """Return P(at least as many bad answers as observed | all alike).

    The tables are (answers, bad, others, others bad). The result is exact: the distribution of the
    sum is the convolution of one hypergeometric distribution per table. It is 1 if no table has
    answers of both sides, some bad and some not. Raises ServeEvalError for counts that do not make
    a table.
    """
    import numpy
    from scipy.special import gammaln

    parts, seen = list[_Part](), 0
    for answers, bad, others, others_bad in tables:
        if not (0 <= bad <= answers and 0 <= others_bad <= others):
            raise ServeEvalError(
                f"{bad} of {answers} and {others_bad} of {others} do not make a table"
            )
        total = bad + others_bad
        low, high = max(0, total - others), min(answers, total)
        seen += bad
        k = numpy.arange(low, high + 1, dtype=float)
        # C(answers, k) C(others, total - k), up to a factor
        logs = (
            -gammaln(k + 1)
            - gammaln(answers - k + 1)
            - gammaln(total - k + 1)
            - gammaln(others - total + k + 1)
        )
        one = numpy.exp(logs - logs.max())
        parts.append((low, one / one.sum()))
    return _at_least(seen, parts)


def no_worse_in_blocks(blocks: Iterable[Sequence[int]]) -> float:
    """Return the same probability as `no_worse` if several workers got the same prompts.

    A block has each worker's number of bad answers, the tested worker's first. Under "all alike"
    each of these numbers is equally likely to be the tested worker's.
    """
    import numpy

    parts, seen = list[_Part](), 0
    for block in blocks:
        low = min(block)
        seen += block[0]
        parts.append((low, numpy.bincount(numpy.array(block) - low) / len(block)))
    return _at_least(seen, parts)


def _at_least(seen: int, parts: Iterable[_Part]) -> float:
    """Return P(a sum of independent numbers is at least `seen`)."""
    import numpy

    chances, least = numpy.ones(1), 0
    for low, one in parts:
        least += low
        if len(one) > 1:
            chances = numpy.convolve(chances, one)
    return 1.0 if seen <= least else min(1.0, float(chances[seen - least :].sum()))
