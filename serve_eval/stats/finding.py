"""The four-way finding: whether a drop is proven, and whether one of the margin is excluded.

It crosses significance with non-inferiority, as in Lakens 2017, "Equivalence tests":

                lower > -margin    lower <= -margin
    p > alpha   PASS               INCONCLUSIVE
    p <= alpha  SMALL_DROP         FAIL
"""

from __future__ import annotations

import math
from enum import StrEnum

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_level, check_margin

Range = tuple[float, float]
MIN_UNITS = 10
"""Least number of independent pairs, or clusters of them, for a conclusion. Fewer do not test a
deployment."""


class PairedFinding(StrEnum):
    """The finding of a paired comparison.

    SMALL_DROP passes with a warning: a drop is proven, and one of the margin or more is excluded.
    """

    PASS = "PASS"
    SMALL_DROP = "SMALL_DROP"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


def finding(p: float | Range, alpha: float, lower: float | Range, margin: float) -> PairedFinding:
    """Return the finding of the table above. `lower` and `margin` share a unit; negative is worse.

    If answers are missing, `p` or `lower` is a range (lowest, highest) instead of a number. A
    result then counts only if the whole range gives it, otherwise the finding is INCONCLUSIVE
    (Manski 1989). p-values that were corrected for many tests are accepted too. Raises
    ServeEvalError for alpha outside (0, 1), a negative margin or a p that is not a probability.
    """
    check_level("alpha", alpha)
    check_margin(margin)
    p_low, p_high = p if isinstance(p, tuple) else (p, p)
    low, high = lower if isinstance(lower, tuple) else (lower, lower)
    if not 0.0 <= p_low <= p_high <= 1.0:
        raise ServeEvalError(
            f"p must be a probability or a rising range of two, not {p}",
            hint="see drop_test().p_range",
        )
    if math.isnan(low) or math.isnan(high) or low > high:
        raise ServeEvalError(
            f"the lower bound must be a number or a rising range, not {lower}", hint="see bounds()"
        )
    proven = True if p_high <= alpha else False if p_low > alpha else None
    excluded = True if low > -margin else False if high <= -margin else None
    if proven is None or excluded is None:
        return PairedFinding.INCONCLUSIVE
    if proven:
        return PairedFinding.SMALL_DROP if excluded else PairedFinding.FAIL
    return PairedFinding.PASS if excluded else PairedFinding.INCONCLUSIVE
