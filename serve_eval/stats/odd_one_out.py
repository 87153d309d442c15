"""Test whether one of several sources is the odd one more often than chance makes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from serve_eval.stats.binomial import binomial_tail

LEAST_OTHERS = 2
"""Others of a row: of two sources that differ, neither is the odd one."""


class OddOneOut(NamedTuple):
    """Hold the rows with one odd source, those where it is the tested one, and p."""

    rows: int
    own: int
    p: float


def odd_one_out(rows: Iterable[tuple[Hashable, Sequence[Hashable]]]) -> OddOneOut:
    """Test the first value of each row against the others of that row.

    A row counts if all its values but one are equal. If the sources are exchangeable within each
    row, and rows are independent, that one is the tested source with probability 1/k, k being the
    number of sources. p is the tail of the binomial distribution with the largest such probability
    of the rows that count, so it is exact or too large.
    """
    found = [(own, others) for own, others in rows if len(others) >= LEAST_OTHERS]
    odd = [(own, others) for own, others in found if _is_one_odd([own, *others])]
    if not odd:
        return OddOneOut(0, 0, 1.0)
    first = sum(own not in others for own, others in odd)
    chance = max(1 / (1 + len(others)) for _, others in odd)
    return OddOneOut(len(odd), first, binomial_tail(first, len(odd), chance))


def _is_one_odd(values: Sequence[Hashable]) -> bool:
    return sorted(Counter(values).values()) == [1, len(values) - 1]
