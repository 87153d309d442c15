"""Tango's score test and confidence bounds for the difference of paired proportions.

Source: Tango 1998, "Equivalence test and confidence interval for the difference in proportions for
the paired-sample design". Unlike the Wald interval it holds its level with few changed prompts.
With none at all it still gives the drop that n identical answers exclude: z^2 / (n + z^2). Unit:
proportions of prompts; negative is worse.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level, check_margin

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray

HALVINGS = 60  # an interval of width 2 shrinks below the spacing of floats near 1


def score_z(down: ArrayLike, up: ArrayLike, n: int, difference: float) -> FloatArray:
    """Return z of the hypothesis that the true difference is `difference`.

    Arrays of counts give arrays. z = (up - down - n D) / sqrt(n (2 q - D (1 + D))), where q, the
    proportion of prompts that became right, has its largest likelihood under D: the larger root of
    2 n q^2 - ((down + up)(1 + D) + 2 D (n - down)) q + up D (1 + D) = 0, kept in [max(0, D), (1 +
    D) / 2]. If the variance vanishes z is infinite, or 0 if the counts fit D exactly.
    """
    import numpy

    lost, won = numpy.asarray(down, dtype=numpy.float64), numpy.asarray(up, dtype=numpy.float64)
    linear = (lost + won) * (1.0 + difference) + 2.0 * difference * (n - lost)
    constant = won * difference * (1.0 + difference)
    root = (linear + numpy.sqrt(numpy.maximum(linear * linear - 8.0 * n * constant, 0.0))) / (
        4.0 * n
    )
    q = numpy.clip(root, max(0.0, difference), (1.0 + difference) / 2.0)
    variance = n * (2.0 * q - difference * (1.0 + difference))
    distance = won - lost - n * difference
    with numpy.errstate(divide="ignore", invalid="ignore"):
        z = distance / numpy.sqrt(numpy.maximum(variance, 0.0))
    return numpy.where(numpy.abs(distance) <= 1e-12 * n, 0.0, z)


def score_bounds(down: int, up: int, n: int, alpha: float) -> tuple[float, float]:
    """Return one-sided 1 - alpha bounds (lower, upper) of the true difference.

    Together they are a two-sided 1 - 2 alpha interval. Raises ServeEvalError for counts that do not
    fit n, or alpha outside (0, 1).
    """
    _check(down, up, n)
    check_level("alpha", alpha)
    return _lower(down, up, n, alpha), -_lower(up, down, n, alpha)


def score_noninferiority_p(down: int, up: int, n: int, margin: float) -> float:
    """Return p of "the true drop reaches the margin": small if such a drop is excluded.

    Raises as `score_bounds`.
    """
    _check(down, up, n)
    check_margin(margin)
    if margin >= 1.0:
        return 0.0  # a proportion cannot drop by more than everything
    from scipy.special import ndtr

    return float(ndtr(-score_z(down, up, n, -margin)))


def _lower(down: int, up: int, n: int, alpha: float) -> float:
    """Return the difference whose z equals the 1 - alpha quantile.

    It is found by halving: z falls as the difference grows.
    """
    from scipy.special import ndtri

    target = -float(ndtri(alpha))
    low, high = -1.0, (up - down) / n
    if target < 0.0:  # alpha above 1/2: the bound is above the estimate
        low, high = high, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if float(score_z(down, up, n, middle)) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _check(down: int, up: int, n: int) -> None:
    check_count("the number of prompts", n, 1)
    check_count("the number of prompts that became wrong", down)
    check_count("the number of prompts that became right", up)
    if down + up > n:
        raise ServeEvalError(
            f"{down} + {up} changed prompts are more than all {math.floor(n)}",
            hint="count each prompt once",
        )
