"""Test the drift chart: run lengths, waves of nights and false alarms.

No function of the product computes these: the vectors of kind cusum_arl are compared with simulated
run lengths of the chart itself.

It is compared with simulated charts; the cost of an estimate is tested as well.
"""

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.drift import (
    LIMIT,
    MOST,
    NEEDED,
    Scale,
    cusum,
    drift,
    false_alarm_chance,
    find_start,
    leave_waves,
    limit_for,
    long_run_variance,
    measure_scale,
    self_starting,
)

# limit, shift in standard deviations -> average run length; charts to simulate
RUN_LENGTHS = [
    (4.0, 0.0, 335.3675776274405, 200),
    (5.0, 1.0, 10.375975300207543, 3000),
    (5.0, 0.5, 38.0096099, 1000),
]


def _run_length(random, limit, shift, average):
    z = random.normal(-shift, 1.0, int(average * 15)).tolist()
    return next(night for night, point in enumerate(cusum(z, 0.5, limit), 1) if point.alarm)


@pytest.mark.parametrize(("limit", "shift", "average", "charts"), RUN_LENGTHS)
def test_simulated_charts_run_as_long_as_the_markov_chain_says(limit, shift, average, charts):
    random = numpy.random.default_rng(11)
    lengths = [_run_length(random, limit, shift, average) for _ in range(charts)]
    error = float(numpy.std(lengths)) / math.sqrt(charts)
    assert float(numpy.mean(lengths)) == pytest.approx(average, abs=4 * error)


def test_the_simulated_run_lengths_are_those_of_the_shared_vectors(vectors):
    arls = {
        (v["inputs"]["h"], v["inputs"]["shift"]): v["expected"]["arl"] for v in vectors("cusum_arl")
    }
    for limit, shift, average, _ in RUN_LENGTHS:
        assert arls[limit, shift] == pytest.approx(average, abs=2e-4)


def test_the_sum_follows_the_recursion():
    points = cusum([0.0, -1.0, -2.0, 0.0, 3.0, -9.0])
    assert [point.s for point in points] == [0.0, 0.5, 2.0, 1.5, 0.0, 8.5]
    assert [point.alarm for point in points] == [False] * 5 + [True]


def test_each_night_is_compared_with_the_mean_of_the_earlier_ones():
    z = self_starting([1.0, 3.0, 2.0, 6.0])
    assert z == pytest.approx([0.0, 2 * math.sqrt(1 / 2), 0.0, 4 * math.sqrt(3 / 4)])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(-5, 5))
def test_a_constant_error_of_the_reference_changes_nothing(history, offset):
    shifted = self_starting([value + offset for value in history])
    assert shifted == pytest.approx(self_starting(history), abs=1e-9)


def test_a_lasting_drop_of_two_standard_deviations_alarms_within_days():
    random = numpy.random.default_rng(3)
    nights = numpy.concatenate([random.normal(0, 1, 60), random.normal(-2, 1, 20)]) * math.sqrt(
        0.017 / 1319
    )
    points = drift(nights, 0.017, 1319)
    assert not any(point.alarm for point in points[:60])
    assert any(point.alarm for point in points[60:75])


def test_a_steady_gain_never_alarms():
    assert not any(point.alarm for point in drift([i / 100 for i in range(50)], 0.01, 1000))


def test_an_endpoint_that_never_varied_is_charted_in_single_flips():
    points = drift([0.0, 0.0, -1 / 200], 0.0, 200)
    assert points[2].z == pytest.approx(-math.sqrt(2 / 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 0.1, 10), "history must be a list of one or more"),
        (([0.0, math.nan], 0.1, 10), "position 1 is nan"),
        (([0.0], -0.1, 10), "run variance must be finite and not negative"),
        (([0.0], math.nan, 10), "run variance must be finite and not negative"),
        (([0.0], 0.1, 0), "number of prompts must be 1 or more"),
    ],
)
def test_a_history_that_cannot_be_charted_is_refused(arguments, message):
    with pytest.raises(ServeEvalError, match=message) as caught:
        drift(*arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("slack", "limit"), [(-0.1, 8.0), (0.5, 0.0), (math.nan, 8.0), (0.5, math.inf)]
)
def test_a_chart_without_sense_is_refused(slack, limit):
    with pytest.raises(ServeEvalError, match="do not make a chart") as caught:
        cusum([0.0], slack, limit)
    assert caught.value.hint


def waves(seed, nights, *, sd, rho):
    """Return independent nights of standard deviation 1, and a slow wave of `sd` above them."""
    random = numpy.random.default_rng(seed)
    wave, found = float(random.standard_normal()), []
    for _ in range(nights):
        found.append(float(random.standard_normal()) + sd * wave)
        wave = rho * wave + math.sqrt(1.0 - rho * rho) * float(random.standard_normal())
    return found


def alarms(nights):
    """Return if the plain chart ever alarms, and if an alarm stays that has enough nights."""
    points = cusum(self_starting(nights))
    kept = leave_waves(points, nights, LIMIT)
    sure = [i for i, one in enumerate(kept) if one.alarm and find_start(points, i) >= NEEDED]
    return any(one.alarm for one in points), bool(sure)


@pytest.mark.parametrize(("sd", "rho"), [(0.0, 0.0), (0.4, 0.9), (1.3, 0.9), (1.0, 0.5)])
def test_the_long_run_variance_is_that_of_the_process_or_more(sd, rho):
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
def test_the_long_run_variance_is_bartletts_and_a_standard_error(nights, known):
    assert long_run_variance(nights) == pytest.approx(known)


def test_waves_alarm_the_plain_chart_and_seldom_the_other():
    found = [alarms(waves(seed, 365, sd=0.4, rho=0.9)) for seed in range(60)]
    plain, sure = (sum(one) for one in zip(*found, strict=True))
    assert plain >= 20  # the old chart: about half of the series
    assert sure <= 4


def test_a_decline_after_many_independent_nights_stays_an_alarm():
    nights = waves(3, 120, sd=0.0, rho=0.0)
    nights += [one - 2.0 for one in waves(4, 30, sd=0.0, rho=0.0)]
    points = leave_waves(cusum(self_starting(nights)), nights, LIMIT)
    assert points[-1].alarm


def test_an_alarm_with_few_nights_before_it_stays_since_nothing_is_known():
    nights = [0.0] * 10 + [-3.0] * 10
    points = cusum(self_starting(nights))
    assert leave_waves(points, nights, LIMIT) == points
    assert find_start(points, len(points) - 1) == 10


def test_nights_without_spread_have_the_least_variance():
    assert long_run_variance([0.0] * 100) == 1.0
    assert long_run_variance([0.5]) == 1.0


KNOWN = Scale()


def test_the_chance_is_that_of_the_average_run_lengths_of_the_shared_vectors(vectors):
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
def test_simulated_charts_alarm_as_often_as_the_chain_says(ratio, flips):
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


def test_the_chance_averages_over_what_the_true_variance_may_be():
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


def test_a_known_variance_needs_no_other_limit_and_a_doubtful_one_does():
    assert limit_for(KNOWN) == LIMIT
    limits = [limit_for(Scale(df=df)) for df in (1000.0, 100.0, 30.0, 10.0, 4.0)]
    assert limits == sorted(limits)
    assert 8.0 < limits[0] < 8.2
    assert limits[-1] > 12.0
    assert limit_for(Scale(df=2.0, run_df=1.0)) == MOST


@settings(max_examples=30)
@given(st.floats(0.5, 2.0), st.floats(2.0, 200.0), st.floats(0.5, 100.0))
def test_at_the_raised_limit_the_chance_is_that_of_a_known_variance(ratio, df, flips):
    scale = Scale(ratio=ratio, df=df, flips=flips)
    limit, target = limit_for(scale), false_alarm_chance(LIMIT)
    if limit < MOST:
        assert false_alarm_chance(limit, scale) <= target
    if limit > LIMIT:
        assert false_alarm_chance(limit - 0.1, scale) > target


def test_no_flip_in_two_runs_does_not_mean_that_there_are_none():
    """For one count, Fay and Feuer's upper bound of a count of 0 is that of Poisson's law:
    -ln(alpha).
    """
    none = measure_scale(0.0, None, runs=2, prompts=198, used=1 / 198, n=198, change=1.0)
    assert (none.ratio, none.df, none.flips) == pytest.approx((0.5, 2.0, 1.0))
    assert limit_for(none) > 10.0


def test_a_flip_of_four_runs_is_a_third_of_its_square_in_variance():
    """Two runs of four differ from the others: their sample variance is 1/3."""
    none = measure_scale(0.0, None, runs=4, prompts=198, used=1 / 198, n=198, change=1.0)
    assert none.ratio == pytest.approx(numpy.var([1.0, 1.0, 0.0, 0.0], ddof=1))


def test_a_variance_of_many_flips_is_known_well():
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
def test_what_makes_no_scale_is_refused(arguments):
    good = {
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
def test_what_makes_no_chart_is_refused(arguments):
    with pytest.raises(ServeEvalError):
        false_alarm_chance(**arguments)
