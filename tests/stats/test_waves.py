"""Nights that depend on each other come in waves, and a wave is no decline."""

from __future__ import annotations

import math

import numpy
import pytest

from serve_eval.stats.drift import (
    LIMIT,
    NEEDED,
    cusum,
    find_start,
    leave_waves,
    long_run_variance,
    self_starting,
)


def waves(seed: int, nights: int, *, sd: float, rho: float) -> list[float]:
    """Return independent nights of standard deviation 1, and a slow wave of `sd` above them."""
    random = numpy.random.default_rng(seed)
    wave, found = float(random.standard_normal()), []
    for _ in range(nights):
        found.append(float(random.standard_normal()) + sd * wave)
        wave = rho * wave + math.sqrt(1.0 - rho * rho) * float(random.standard_normal())
    return found


def alarms(nights: list[float]) -> tuple[bool, bool]:
    """Return if the plain chart ever alarms, and if an alarm stays that has enough nights."""
    points = cusum(self_starting(nights))
    kept = leave_waves(points, nights, LIMIT)
    sure = [i for i, one in enumerate(kept) if one.alarm and find_start(points, i) >= NEEDED]
    return any(one.alarm for one in points), bool(sure)


@pytest.mark.parametrize(("sd", "rho"), [(0.0, 0.0), (0.4, 0.9), (1.3, 0.9), (1.0, 0.5)])
def test_the_long_run_variance_is_that_of_the_process_or_more(sd: float, rho: float) -> None:
    true = 1.0 + sd * sd * (1.0 + rho) / (1.0 - rho)
    found = [long_run_variance(waves(seed, 400, sd=sd, rho=rho)) for seed in range(40)]
    assert numpy.median(found) > 0.9 * true
    assert numpy.median(found) < 2.5 * true


@pytest.mark.parametrize(
    ("nights", "known"),
    [
        # Sums of products at lags 0 to 2: 72, 9 and -54. The window of one lag gives more.
        ([3.0, 3.0, -3.0, -3.0] * 2, 81.0 / 8 / (7 / 8) * (1.0 + math.sqrt(4 / 24))),
        # 168, 105 and 46: the window of two lags gives more.
        (
            [-7.0, -5.0, -3.0, -1.0, 1.0, 3.0, 5.0, 7.0],
            (168.0 + 2.0 * (2 / 3 * 105.0 + 1 / 3 * 46.0))
            / 8
            / (6 / 8)
            * (1.0 + math.sqrt(8 / 24)),
        ),
        ([5.0] * 8, 1.0),
    ],
)
def test_the_long_run_variance_is_bartletts_and_a_standard_error(
    nights: list[float], known: float
) -> None:
    assert long_run_variance(nights) == pytest.approx(known)


def test_waves_alarm_the_plain_chart_and_seldom_the_other() -> None:
    found = [alarms(waves(seed, 365, sd=0.4, rho=0.9)) for seed in range(60)]
    plain, sure = (sum(one) for one in zip(*found, strict=True))
    assert plain >= 20  # the old chart: about half of the series
    assert sure <= 4


def test_a_decline_after_many_independent_nights_stays_an_alarm() -> None:
    nights = waves(3, 120, sd=0.0, rho=0.0)
    nights += [one - 2.0 for one in waves(4, 30, sd=0.0, rho=0.0)]
    points = leave_waves(cusum(self_starting(nights)), nights, LIMIT)
    assert points[-1].alarm


def test_an_alarm_with_few_nights_before_it_stays_since_nothing_is_known() -> None:
    nights = [0.0] * 10 + [-3.0] * 10
    points = cusum(self_starting(nights))
    assert leave_waves(points, nights, LIMIT) == points
    assert find_start(points, len(points) - 1) == 10


def test_nights_without_spread_have_the_least_variance() -> None:
    assert long_run_variance([0.0] * 100) == 1.0
    assert long_run_variance([0.5]) == 1.0
