"""Compare a computed value with a threshold as exact numbers.

57 right answers of 100 are 56.99999999999999 in floating point. The value is therefore taken back
to the sum of the scores that it comes from. A count is a whole number, and graded scores are
decimals, so the sum has at most DIGITS significant digits and rounding to them restores it. Proof:
the sum of the scores, the division by the samples, the scaling and the way back each err by at most
2^-53 of the result; with the ends of the range of missing answers these are at most 8 steps, 9e-16
in all. Half a unit of the last of 14 digits is at least 5e-15. The threshold is the shortest
decimal that reads as its float, which is what was written if it has at most 15 digits.

Equal floats are equal: a computed threshold is no decimal, and a run equal to its reference must be
on it. With up to nine decimals this changes nothing, since a count of n samples that is not on such
a threshold is at least 1e-9 / n from it, which is 6.7e-14 for 15,000 samples.

A value that is no mean, such as a word error rate, is rounded to DIGITS itself. It then counts as
equal to a threshold within 5e-14 of its size.
"""

from __future__ import annotations

import math
from fractions import Fraction

DIGITS = 14
"""Significant digits to which a sum of scores is rounded."""


def compare(value: float, threshold: float, samples: int = 1, scale: float = 1.0) -> int:
    """Return -1, 0 or 1 if a value is below, on or above a threshold.

    The value is `scale` times the mean of `samples` scores.
    """
    if value == threshold or not (math.isfinite(value) and math.isfinite(threshold)):
        return (value > threshold) - (value < threshold)
    total = float(Fraction(value) * samples / Fraction(scale))
    exact = Fraction(f"{total:.{DIGITS}g}") * Fraction(scale) / samples
    limit = Fraction(repr(float(threshold)))
    return (exact > limit) - (exact < limit)
