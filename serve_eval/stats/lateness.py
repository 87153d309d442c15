"""Whether one of two took longer than the other by more than two ways of doing the same thing
differ anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from serve_eval.stats.mcnemar import mcnemar

SLOWER = 2.0
"""By how much times must differ to be told: two ways of serving a model never take the same
time."""


class Lateness(NamedTuple):
    """`longer` of `of` times were more than SLOWER times as long; `p` is that of the exact sign
    test that no more than half of all are.
    """

    longer: int
    of: int
    p: float


def lateness(times: Iterable[tuple[float, float]]) -> Lateness:
    """The sign test of the median ratio, of pairs (usual time, time in question): exact where they
    are independent of each other, whatever the times are distributed like. No pair gives p = 1.
    """
    longer = of = 0
    for usual, taken in times:
        of += 1
        longer += taken > SLOWER * usual
    return Lateness(longer, of, mcnemar(longer, of - longer).p_exact)
