"""Test the chance of a false alarm of the drift chart.

It is compared with simulated charts; the cost of an estimate is tested as well.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.drift import LIMIT, MOST, Scale, false_alarm_chance, limit_for, measure_scale

KNOWN = Scale()


def test_the_chance_is_that_of_the_average_run_lengths_of_the_shared_vectors(vectors: Any) -> None:
    """After the chart's start phase, alarms come at the rate 1 / ARL."""
    arls = {
        (v["inputs"]["h"], v["inputs"]["shift"]): v["expected"]["arl"] for v in vectors("cusum_arl")
    }
    for limit in (4.0, 8.0):
        quiet = 1 - false_alarm_chance(limit, runs=4000), 1 - false_alarm_chance(limit, runs=2000)
        assert -2000 / math.log(quiet[0] / quiet[1]) == pytest.approx(arls[limit, 0.0], rel=0.03)


@pytest.mark.parametrize(
    ("ratio", "flips"), [(1.0, math.inf), (1.5, math.inf), (1.0, 3.0), (2.0, 3.0), (1.5, 1.0)]
)
def test_simulated_charts_alarm_as_often_as_the_chain_says(ratio: float, flips: float) -> None:
    """Counts of flips, each a loss, alarm no more often than the skewed steps that model them."""
    random, charts, runs = numpy.random.default_rng(7), 20_000, 120
    if math.isinf(flips):
        steps = random.normal(size=(runs, charts)) * math.sqrt(ratio)
    else:
        steps = (random.poisson(ratio * flips, (runs, charts)) - ratio * flips) / math.sqrt(flips)
    total, highest = numpy.zeros(charts), numpy.zeros(charts)
    for step in steps:
        total = numpy.maximum(0.0, total + step - 0.5)
        highest = numpy.maximum(highest, total)
    found = float((highest > LIMIT).mean())
    told = false_alarm_chance(LIMIT, Scale(ratio=ratio, flips=flips), runs=runs)
    error = 4 * math.sqrt(found / charts)
    assert found - error <= told <= (1.05 if math.isinf(flips) else 1.6) * found + error


def test_the_chance_averages_over_what_the_true_variance_may_be() -> None:
    """Draw the variance, then run a chart that divides by its estimate for a year."""
    random, charts = numpy.random.default_rng(8), 20_000
    scale = Scale(ratio=1.1, df=12.0)
    root = numpy.sqrt(scale.ratio * random.chisquare(scale.df, charts) / scale.df)
    total, highest = numpy.zeros(charts), numpy.zeros(charts)
    for _ in range(365):
        total = numpy.maximum(0.0, total + root * random.normal(size=charts) - 0.5)
        highest = numpy.maximum(highest, total)
    for limit in (8.0, limit_for(scale)):
        assert false_alarm_chance(limit, scale) == pytest.approx(
            float((highest > limit).mean()), abs=0.007
        )


def test_a_known_variance_needs_no_other_limit_and_a_doubtful_one_does() -> None:
    assert limit_for(KNOWN) == LIMIT
    limits = [limit_for(Scale(df=df)) for df in (1000.0, 100.0, 30.0, 10.0, 4.0)]
    assert limits == sorted(limits)
    assert 8.0 < limits[0] < 8.2
    assert limits[-1] > 12.0
    assert limit_for(Scale(df=2.0, run_df=1.0)) == MOST


@settings(max_examples=30)
@given(st.floats(0.5, 2.0), st.floats(2.0, 200.0), st.floats(0.5, 100.0))
def test_at_the_raised_limit_the_chance_is_that_of_a_known_variance(
    ratio: float, df: float, flips: float
) -> None:
    scale = Scale(ratio=ratio, df=df, flips=flips)
    limit, target = limit_for(scale), false_alarm_chance(LIMIT)
    if limit < MOST:
        assert false_alarm_chance(limit, scale) <= target
    if limit > LIMIT:
        assert false_alarm_chance(limit - 0.1, scale) > target


def test_no_flip_in_two_runs_does_not_mean_that_there_are_none() -> None:
    """For one count, Fay and Feuer's upper bound of a count of 0 is that of Poisson's law:
    -ln(alpha).
    """
    none = measure_scale(0.0, None, runs=2, prompts=198, used=1 / 198, n=198, change=1.0)
    assert (none.ratio, none.df, none.flips) == pytest.approx((0.5, 2.0, 1.0))
    assert limit_for(none) > 10.0


def test_a_variance_of_many_flips_is_known_well() -> None:
    """m prompts of two runs disagree.

    The distribution is that of a Poisson count with m + 1 observed.
    """
    m, n = 400, 10_000
    scale = measure_scale(
        m / (2 * n), 2.0 * m, runs=2, prompts=n, used=m / (2 * n), n=n, change=1.0
    )
    assert scale.ratio == pytest.approx((m + 1) / m)
    assert scale.df == pytest.approx(2 * (m + 1))
    assert scale.flips == pytest.approx(m / 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"runs": 1},
        {"prompts": 0},
        {"n": 0},
        {"used": 0.0},
        {"variance": math.nan},
        {"change": 0.0},
    ],
)
def test_what_makes_no_scale_is_refused(arguments: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "variance": 0.1,
        "runs": 2,
        "prompts": 9,
        "used": 0.1,
        "n": 9,
        "change": 1.0,
    }
    with pytest.raises(ServeEvalError) as caught:
        measure_scale(variance_df=3.0, **{**good, **arguments})
    assert caught.value.hint


@pytest.mark.parametrize(
    "arguments", [{"limit": 0.0}, {"limit": 8.0, "slack": -1.0}, {"limit": 8.0, "runs": 0}]
)
def test_what_makes_no_chart_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ServeEvalError):
        false_alarm_chance(**arguments)
