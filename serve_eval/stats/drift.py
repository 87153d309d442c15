"""Detect drift: a slow decline that no single night shows, by a cumulative sum over a task's runs.

A chart against a fixed reference run would include that run's own error permanently. The
self-starting form compares each night with the mean of the earlier ones instead. It warns; it never
fails a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, float_row

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SLACK = 0.5  # standard deviations; half of the shift that is detected fastest
# 18,960 nights between false alarms; a shift of one standard deviation is detected after 16.
LIMIT = 8.0


@dataclass(frozen=True, slots=True)
class DriftPoint:
    """One night of the chart.

    `z` is its distance from the earlier mean in standard deviations, `s` the sum; `alarm` is True
    if the sum is above the limit.
    """

    z: float
    s: float
    alarm: bool


def self_starting(history: ArrayLike) -> list[float]:
    """Return z of each value against the mean of the earlier ones.

    z = (x - mean) sqrt((t - 1) / t), and 0 for the first. The z are independent with standard
    deviation 1 if the values are (Hawkins 1987, "Self-starting cusum charts").
    """
    total, result = 0.0, []
    for earlier, value in enumerate(float_row("the history", history).tolist()):
        result.append(
            (value - total / earlier) * math.sqrt(earlier / (earlier + 1)) if earlier else 0.0
        )
        total += value
    return result


def cusum(scores: Sequence[float], slack: float = SLACK, limit: float = LIMIT) -> list[DriftPoint]:
    """Return a one-sided cumulative sum for a decline.

    S = max(0, S - score - slack), alarm while S > limit (Page 1954). Unit: standard deviations.
    Raises ServeEvalError for a negative slack or a limit that is not above 0.
    """
    if not (math.isfinite(slack) and slack >= 0.0 and math.isfinite(limit) and limit > 0.0):
        raise ServeEvalError(
            f"slack {slack} and limit {limit} do not make a chart",
            hint="use a slack of 0 or more and a limit above 0",
        )
    total, points = 0.0, []
    for value in scores:
        total = max(0.0, total - value - slack)
        points.append(DriftPoint(value, total, total > limit))
    return points


def drift(
    differences: ArrayLike, variance: float, n: int, *, slack: float = SLACK, limit: float = LIMIT
) -> list[DriftPoint]:
    """Chart the mean differences of one task's runs over `n` prompts, oldest first.

    Negative is worse. `variance` is the run variance v of `instability` in squared units of the
    score. At least 1 / n is used, so that a single flip of an endpoint that never varied is one
    standard deviation. Raises ServeEvalError for an empty history, missing or infinite values and a
    negative variance.
    """
    check_count("the number of prompts", n, 1)
    if not (math.isfinite(variance) and variance >= 0.0):
        raise ServeEvalError(
            f"the run variance must be finite and not negative, not {variance}",
            hint="take it from instability()",
        )
    scale = math.sqrt(max(variance, 1.0 / n) / n)
    return cusum(self_starting(float_row("the history", differences) / scale), slack, limit)
