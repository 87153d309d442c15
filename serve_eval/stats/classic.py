"""Decide by the classic test of TensorRT-LLM: a one-sided z test with an assumed spread.

It is a two-sample test. The reference mean and the new mean are both treated as averages of n
independent draws with the same standard deviation sigma, so their difference has the standard error
`scale = sqrt(2 sigma^2 / n)`. Source of the formulas: the README and `accuracy_core.py` of
TensorRT-LLM's accuracy suite. All values are in points (0..100 for an accuracy).

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
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from statistics import NormalDist

from serve_eval.errors import ServeEvalError


@dataclass(frozen=True, slots=True)
class ClassicTest:
    """`theta`: the minimum detectable effect; `threshold`: the worst value that still passes."""

    theta: float
    threshold: float


class Decision(StrEnum):
    """The decision of a threshold on an interval that contains the value."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"


def _quantiles(sigma: float, alpha: float, beta: float) -> tuple[float, float]:
    """Return the standard normal quantiles of alpha and beta, after a check of all parameters."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0.0 < value < 1.0:
            raise ServeEvalError(f"{name} must lie strictly between 0 and 1, not {value}")
    if not (math.isfinite(sigma) and sigma >= 0.0):
        raise ServeEvalError(f"sigma must be a finite number of points, 0 or more, not {sigma}")
    normal = NormalDist()
    return normal.inv_cdf(alpha), normal.inv_cdf(beta)


def classic_test(
    n: int, reference: float, sigma: float, alpha: float, beta: float, higher_is_better: bool = True
) -> ClassicTest:
    """Return the minimum detectable effect and the threshold for `n` samples per side.

    theta = -(z_alpha + z_beta) scale; threshold = reference + z_alpha scale, mirrored if lower is
    better. `beta` only enters theta. Raises ServeEvalError if a parameter is out of range.
    """
    if n < 1:
        raise ServeEvalError(f"the number of samples must be 1 or more, not {n}")
    if not math.isfinite(reference):
        raise ServeEvalError(f"the reference must be a finite number, not {reference}")
    z_alpha, z_beta = _quantiles(sigma, alpha, beta)
    scale = math.sqrt(2.0 * sigma**2 / n)
    margin = z_alpha * scale
    return ClassicTest(
        theta=-(z_alpha + z_beta) * scale,
        threshold=reference + margin if higher_is_better else reference - margin,
    )


def num_samples_for(theta: float, sigma: float, alpha: float, beta: float) -> int:
    """Return the smallest n whose minimum detectable effect is at most `theta`.

    n = 2 sigma^2 (z_alpha + z_beta)^2 / theta^2.
    """
    if not (math.isfinite(theta) and theta > 0.0):
        raise ServeEvalError(f"theta must be a finite number of points above 0, not {theta}")
    z_alpha, z_beta = _quantiles(sigma, alpha, beta)
    return max(1, math.ceil(2.0 * sigma**2 * (z_alpha + z_beta) ** 2 / theta**2))


def decide(
    bounds: tuple[float, float],
    threshold: float,
    higher_is_better: bool = True,
    *,
    samples: int = 1,
    scale: float = 1.0,
) -> Decision:
    """Return PASS or FAIL if all values within `bounds` agree on it, else UNDECIDED.

    `bounds` are lowest and highest value. A value equal to the threshold passes, in exact
    arithmetic (`exact`): each bound is `scale` times the mean of `samples` scores.
    """
    sign = 1 if higher_is_better else -1
    worst, best = sorted(sign * compare(end, threshold, samples, scale) for end in bounds)
    if worst >= 0:
        return Decision.PASS
    return Decision.FAIL if best < 0 else Decision.UNDECIDED


def power_table(
    total: int, sigma: float, alpha: float, beta: float
) -> Sequence[tuple[int, ClassicTest]]:
    """Return rows (n, test against a reference of 0) for n = 32, 64, 128, ... and `total`.

    The powers of two end below `total`, which is the last row.
    """
    sizes = [32 * 2**k for k in range(64) if 32 * 2**k < total]
    return [(n, classic_test(n, 0.0, sigma, alpha, beta)) for n in [*sizes, total]]


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
