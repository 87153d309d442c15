"""Tell a decline from the waves of a series whose nights depend on each other.

The drift chart takes nights for independent. If one night resembles the next, as after a change of
load or of machine that lasts for days, the sum wanders, and an unchanged endpoint alarms sooner or
later. What counts then is the long-run variance: n times the variance of the mean of n nights,
which is larger than that of one night. It is estimated from the nights before a decline began, so
that the decline does not hide itself, by Bartlett's window (Newey and West 1987, "A simple,
positive semi-definite, heteroskedasticity and autocorrelation consistent covariance matrix"), and
raised by its own standard error. The sum is then taken again with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from serve_eval.stats.drift import SLACK, DriftPoint, cusum
from serve_eval.stats.inputs import float_row

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NEEDED = 90
"""Nights before a decline from which their autocorrelation is known well enough."""
WINDOWS = (8, 4)
"""Widths of Bartlett's window, as parts of the nights: of several, the largest estimate counts."""


def long_run_variance(nights: ArrayLike) -> float:
    """Return a cautious estimate of the long-run variance, at least 1.

    `nights` are in standard deviations of an independent night, so that 1 means no dependence.
    For the window m of n nights the estimate is divided by 1 - m / n, since the mean is estimated
    too, and multiplied by one standard error, 1 + sqrt(4 m / 3 n) (Priestley 1981, "Spectral
    Analysis and Time Series", table 6.1).
    """
    row = float_row("the nights", nights)
    n, found = len(row), 1.0
    apart = row - row.mean()
    for part in WINDOWS:
        if (m := n // part) < 1:
            continue
        total = float(apart @ apart)
        for lag in range(1, m + 1):
            total += 2.0 * (1.0 - lag / (m + 1)) * float(apart[:-lag] @ apart[lag:])
        found = max(found, total / n / (1.0 - m / n) * (1.0 + math.sqrt(4.0 * m / (3.0 * n))))
    return found


def find_start(points: Sequence[DriftPoint], place: int) -> int:
    """Return the first night of the decline that reaches a place: the one after the last zero."""
    return next((i + 1 for i in range(place, -1, -1) if points[i].s == 0.0), 0)


def leave_waves(
    points: Sequence[DriftPoint], nights: ArrayLike, limit: float, slack: float = SLACK
) -> list[DriftPoint]:
    """Return the points of a chart without the alarms that the waves of the nights explain.

    An alarm stays if its decline has fewer than NEEDED nights before it, or if the sum exceeds the
    limit also by their long-run variance.
    """
    row = float_row("the nights", nights)
    again: dict[int, list[DriftPoint]] = {}
    kept = []
    for place, point in enumerate(points):
        if point.alarm and (start := find_start(points, place)) >= NEEDED:
            if start not in again:
                spread = math.sqrt(long_run_variance(row[:start]))
                again[start] = cusum([one.z / spread for one in points], slack, limit)
            point = replace(point, alarm=again[start][place].alarm)
        kept.append(point)
    return kept
