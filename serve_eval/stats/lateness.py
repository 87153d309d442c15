"""Test whether times are longer than usual, beyond normal differences between two servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from serve_eval.stats.mcnemar import mcnemar

SLOWER = 2.0
"""Least factor between times that counts: two ways of serving a model never take the same time."""


class Lateness(NamedTuple):
    """The result of the sign test.

    `longer` of `of` times were more than SLOWER times as long. `p` is that of the exact sign test
    of "at most half of all times are".
    """

    longer: int
    of: int
    p: float


def lateness(times: Iterable[tuple[float, float]]) -> Lateness:
    """Apply the sign test of the median ratio to pairs (usual time, time in question).

    It is exact for any distribution of the times if the pairs are independent. No pair gives p = 1.
    """
    longer = of = 0
    for usual, taken in times:
        of += 1
        longer += taken > SLOWER * usual
    return Lateness(longer, of, mcnemar(longer, of - longer).p_exact)
