"""Sum the chance of an event over all numbers of prompts that change, and that change downwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray

    BoolArray = NDArray[numpy.bool_]

TAIL = 1e-10  # tail probability of the number of changed prompts that exact sums leave out


def check_discordance(drop: float, n: int, flip_rate: float, alpha: float) -> float:
    """Return the share of prompts that change under the drop, after a check of all parameters."""
    check_count("the number of prompts", n, 1)
    check_level("alpha", alpha)
    if not (drop >= 0.0 and flip_rate >= 0.0 and drop + flip_rate <= 1.0):
        raise ServeEvalError(
            f"a drop of {drop} and a flip rate of {flip_rate} are not proportions of one set of"
            " prompts",
            hint="give both as proportions: 0.01 is one point",
        )
    return drop + flip_rate


def chance_of_few(
    n: int,
    discordance: float,
    down_share: float,
    accepted: Callable[[IntArray, IntArray], BoolArray],
) -> float:
    """Return P(accepted(down, changed)) if `accepted` holds up to some number of prompts down.

    changed ~ Bin(n, discordance), down given changed ~ Bin(changed, down_share / discordance). For
    every number of changed prompts the largest accepted number of prompts down is found by halving,
    all together.
    """
    import numpy
    from scipy.special import bdtr, bdtrik

    if discordance == 0.0:
        none = numpy.zeros(1, dtype=numpy.int64)
        return float(accepted(none, none)[0])
    if discordance < 1.0:
        ends = bdtrik(numpy.array([TAIL, 1.0 - TAIL]), float(n), discordance)
        first, last = max(0, math.floor(ends[0]) - 1), min(n, math.ceil(ends[1]) + 1)
    else:
        first = last = n
    changed = numpy.arange(first, last + 1)
    below: FloatArray = bdtr(changed, n, discordance)
    chance = numpy.diff(below, prepend=float(bdtr(first - 1, n, discordance)) if first else 0.0)
    # Accepted at low (or -1: never), open up to high.
    low, high = numpy.full(len(changed), -1), changed.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        yes = accepted(middle, changed)
        low, high = numpy.where(yes, middle, low), numpy.where(yes, high, middle - 1)
    within = numpy.where(
        low < 0, 0.0, bdtr(numpy.maximum(low, 0), changed, min(1.0, down_share / discordance))
    )
    return float(chance @ within / chance.sum())
