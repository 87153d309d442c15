"""Detect a slow decline over nights, with a known rate of false alarms.

A chart against a fixed reference run would include that run's own error permanently. The
self-starting form compares each night with the mean of the earlier ones instead. It warns; it never
fails a run.

The chart divides by the estimate. If the estimate is too small, every step of the sum is too large.
A chart that raises a false alarm in 2 % of the years if the variance is known does so in 10 % of
them if the variance is estimated from two runs. Two effects are included here.

The variance. Each prompt's sample variance over K runs is one rare and unequal contribution to the
estimate, so their sum is nearly a weighted sum of Poisson counts. Given the data, the true value
of the sum follows the gamma distribution of Fay and Feuer 1997, "Confidence intervals for directly
standardized rates: a method based on the gamma distribution": mean y + w and variance q + w^2, for
the sum y of the prompts' variances, the variance q of that sum and the largest weight w. The w
stands for one flip that was not observed: no flips in two runs do not mean that there are none.
Satterthwaite's chi-squared alone, around the estimate, has no answer for an estimate of 0.

The shape. A run in which few prompts flip is a small whole number of flips, and skewed: at most as
skewed as a Poisson count, where each flip is a loss. The steps are therefore shifted gamma
variables with the skewness of that count. They become normal as the flips of a run become many.

The chance is that of a Markov chain over the values of the sum (Brook and Evans 1972, "An approach
to the probability distribution of cusum run length"), averaged over the possible true variances.

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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, float_row

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray


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


def _check_chart(slack: float, limit: float) -> None:
    if not (math.isfinite(slack) and slack >= 0.0 and math.isfinite(limit) and limit > 0.0):
        raise ServeEvalError(
            f"slack {slack} and limit {limit} do not make a chart",
            hint="use a slack of 0 or more and a limit above 0",
        )


def cusum(scores: Sequence[float], slack: float = SLACK, limit: float = LIMIT) -> list[DriftPoint]:
    """Return a one-sided cumulative sum for a decline.

    S = max(0, S - score - slack), alarm while S > limit (Page 1954). Unit: standard deviations.
    Raises ServeEvalError for a negative slack or a limit that is not above 0.
    """
    _check_chart(slack, limit)
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


RUNS = 365
"""Runs for which the chance of a false alarm is stated: a year of nights."""
MOST = 24.0
"""Highest limit that is chosen. It detects a drop of one standard deviation after 49 runs."""
STATES, QUANTILES = 60, 40
CLOSE, FAR = 0.1, 100.0
"""Range in which the ratio of the true variance to the estimate matters. At smaller ratios the
chart is silent; at larger ones it alarms."""
STEP = 0.2
"""Step of the grid of ln(ratio) on which the chain is computed; values between are interpolated."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The run variance that a chart divides by, and how well it is known.

    The true variance is `ratio` times as large on average, with the spread of a chi-squared
    variable of `df` degrees of freedom (infinite if the variance is known). `flips` is the variance
    used, n v, in units of the largest change of one score: about the number of scores that change
    from run to run; infinite for normal values. `run_df` are the degrees of freedom with which the
    variance between runs as a whole was measured (infinite if it was not).
    """

    ratio: float = 1.0
    df: float = math.inf
    flips: float = math.inf
    run_df: float = math.inf


def measure_scale(
    variance: float,
    variance_df: float | None,
    *,
    runs: int,
    prompts: int,
    used: float,
    n: int,
    change: float,
) -> Scale:
    """Return how well a measured run variance is known.

    `variance` and `variance_df` are those of `instability` on `runs` runs of `prompts` prompts;
    `used` is the variance per prompt that the chart of `n` prompts divides by, and `change` the
    largest change of one score. All are in units of the score. Raises ServeEvalError for values
    that are not finite, or not positive where they must be.
    """
    check_count("the number of runs", runs, 2)
    check_count("the number of prompts", min(prompts, n), 1)
    if not (0.0 <= variance < math.inf and 0.0 < used < math.inf and 0.0 < change < math.inf):
        raise ServeEvalError(
            f"these values do not make a chart: variance {variance}, variance used {used}, largest"
            f" change {change}",
            hint="take the variance from instability() and the change from the range of the scores",
        )
    total = prompts * variance
    spread = 2.0 * total**2 / (1.0 if variance_df is None else variance_df)
    weight = change**2 * (runs // 2) * ((runs + 1) // 2) / (runs * (runs - 1))
    mean, error = total + weight, spread + weight**2
    return Scale(
        ratio=mean / (prompts * used), df=2.0 * mean**2 / error, flips=n * used / change**2
    )


def false_alarm_chance(
    limit: float, scale: Scale = Scale(), *, runs: int = RUNS, slack: float = SLACK
) -> float:
    """Return the chance of a false alarm of an unchanged endpoint within `runs` runs.

    An alarm means that the chart passes `limit` at least once. Raises ServeEvalError for a limit
    that is not above 0, a negative slack or no run.
    """
    import numpy

    check_count("the number of runs", runs, 1)
    _check_chart(slack, limit)
    ratios = numpy.clip(_ratios(scale), CLOSE, FAR)
    low, high = math.log(ratios.min()), math.log(ratios.max())
    grid = numpy.linspace(low, high, 1 + math.ceil((high - low) / STEP))
    chances = [_chance(limit, runs, slack, math.exp(at), scale.flips) for at in grid]
    return float(numpy.interp(numpy.log(ratios), grid, chances).mean())


def limit_for(scale: Scale, *, runs: int = RUNS) -> float:
    """Return the limit at which a false alarm is as rare as with LIMIT and a known normal variance.

    The limit is in tenths, rounded up, between LIMIT and MOST. At MOST the chance may be higher:
    `false_alarm_chance` computes it.
    """
    target = false_alarm_chance(LIMIT, runs=runs)
    low, high = round(10.0 * LIMIT), round(10.0 * MOST)
    while low < high:
        middle = (low + high) // 2
        if false_alarm_chance(middle / 10.0, scale, runs=runs) <= target:
            high = middle
        else:
            low = middle + 1
    return high / 10.0


def _ratios(scale: Scale) -> FloatArray:
    """Return equally likely ratios of the true variance to the one that is used."""
    import numpy
    from scipy.special import chdtri, gammaincinv

    at = (numpy.arange(QUANTILES) + 0.5) / QUANTILES
    shape = scale.df / 2.0
    ratios = numpy.array([scale.ratio])
    if math.isfinite(shape):
        ratios = scale.ratio * gammaincinv(shape, at) / shape
    if math.isfinite(scale.run_df):
        ratios = numpy.multiply.outer(ratios, scale.run_df / chdtri(scale.run_df, at)).ravel()
    result: FloatArray = ratios
    return result


def _chance(limit: float, runs: int, slack: float, ratio: float, flips: float) -> float:
    """Return the chance of an alarm if the true variance is `ratio` times the one used.

    The sum is in one of STATES intervals, of which the first, half as wide, holds 0. A step moves
    it by a shifted gamma variable of mean -slack, variance `ratio` and skewness 1 / sqrt(ratio *
    flips).
    """
    import numpy
    from scipy.special import gammainc, ndtr

    width = limit / (STATES - 0.5)
    edges = ((numpy.arange(1 - STATES, STATES + 1) - 0.5) * width + slack) / math.sqrt(ratio)
    shape = 4.0 * ratio * flips
    if math.isfinite(shape):
        below = gammainc(shape, numpy.maximum(shape + math.sqrt(shape) * edges, 0.0))
    else:
        below = ndtr(edges)
    states = numpy.arange(STATES)
    up = states[None, :] - states[:, None] + STATES - 1  # intervals moved, as index into `edges`
    moves = below[up + 1] - below[up]
    moves[:, 0] = below[up[:, 0] + 1]
    return max(0.0, 1.0 - float(numpy.linalg.matrix_power(moves, runs)[0].sum()))


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


def leave_waves(points: Sequence[DriftPoint], nights: ArrayLike, limit: float) -> list[DriftPoint]:
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
                again[start] = cusum([one.z / spread for one in points], SLACK, limit)
            point = replace(point, alarm=again[start][place].alarm)
        kept.append(point)
    return kept
