"""Bet against a hypothesis on a mean.

The evidence is valid for sparse scores and for any number of looks. A gambler stakes a share of the
wealth on every value against "the mean is at most `null`". Under that hypothesis the wealth does
not grow on average, so it reaches 1 / alpha with probability at most alpha (Ville 1939). Source:
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", arXiv
2010.09686. The stakes are a fixed grid; their wealths are averaged. Values are in [-1, 1].

Here the number of values is fixed and their order does not matter; `early_stop` bets sample by
sample. The bound also holds for prompts with different true means, since a product of means is at
most the power of their average.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_level, float_row

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

# Shares of the largest stake that cannot lose more than everything.
GRID = (0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8, 0.97)
HALVINGS = 50


def log_wealth(values: ArrayLike, null: float) -> float:
    """Return ln of the mean over stakes g of prod (1 + g (x - null) / (null + 1)).

    It is infinite if the hypothesis is impossible.
    """
    import numpy

    row = float_row("the values", values)
    if numpy.abs(row).max() > 1.0:
        raise ServeEvalError(
            "a value lies outside -1..1",
            hint="divide differences by the width of the metric's range",
        )
    distinct, counts = numpy.unique(row, return_counts=True)
    return _log_wealth(distinct, counts, null)


def mean_lower_bound(values: ArrayLike, alpha: float) -> float:
    """Return the lower 1 - alpha bound of the mean.

    It is the largest `null` against which the wealth reaches 1 / alpha.
    """
    import numpy

    check_level("alpha", alpha)
    row = float_row("the values", values)
    log_wealth(row, 0.0)  # checks the range
    distinct, counts = numpy.unique(row, return_counts=True)
    low, high = -1.0, float(row.mean())
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if _log_wealth(distinct, counts, middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low


def _log_wealth(distinct: FloatArray, counts: IntArray, null: float) -> float:
    import numpy

    if null >= 1.0:
        return 0.0  # no bet: the hypothesis allows every value
    if null <= -1.0:
        return math.inf if float(distinct.max()) > -1.0 else 0.0
    growth = (
        numpy.log1p(numpy.multiply.outer(numpy.array(GRID), (distinct - null) / (null + 1.0)))
        @ counts
    )
    top = float(growth.max())
    return top + math.log(float(numpy.exp(growth - top).mean()))
