"""Correct p-values for many tests in one run.

Of 40 tests at 5 %, some false alarm is nearly certain (87 %). Holm keeps the chance of any false
alarm at alpha under any dependence and suits a gate. Benjamini-Hochberg keeps the share of false
alarms among all alarms and suits triage only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from serve_eval.stats.inputs import check_p_values


def holm(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values in the order given: reject if <= alpha.

    The i-th smallest of m (from 0) is multiplied by m - i, and no value is below a smaller one's
    (Holm 1979, "A simple sequentially rejective multiple test procedure"). Raises ServeEvalError
    for values outside 0..1.
    """
    check_p_values(p)
    order = sorted(range(len(p)), key=p.__getitem__)
    scaled = [min(1.0, (len(p) - rank) * p[place]) for rank, place in enumerate(order)]
    return _in_place(order, accumulate(scaled, max))


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return q-values in the order given: of those at most q, a share of q is expected to be false.

    The i-th smallest of m (from 1) is multiplied by m / i, and no value is above a larger one's
    (Benjamini and Hochberg 1995, "Controlling the false discovery rate"). Raises ServeEvalError for
    values outside 0..1.
    """
    check_p_values(p)
    order = sorted(range(len(p)), key=p.__getitem__, reverse=True)
    scaled = [min(1.0, len(p) / (len(p) - rank) * p[place]) for rank, place in enumerate(order)]
    return _in_place(order, accumulate(scaled, min))


def _in_place(order: Sequence[int], values: accumulate[float]) -> list[float]:
    """Return sorted values at their original positions."""
    back = dict(zip(order, values, strict=True))
    return [back[place] for place in range(len(order))]
