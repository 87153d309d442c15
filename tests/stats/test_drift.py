"""Test the drift chart against average run lengths.

No function of the product computes these: the vectors of kind cusum_arl are compared with simulated
run lengths of the chart itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.drift import cusum, drift, self_starting

# limit, shift in standard deviations -> average run length; charts to simulate
RUN_LENGTHS = [
    (4.0, 0.0, 335.3675776274405, 200),
    (5.0, 1.0, 10.375975300207543, 3000),
    (5.0, 0.5, 38.0096099, 1000),
]


def _run_length(random: numpy.random.Generator, limit: float, shift: float, average: float) -> int:
    z = random.normal(-shift, 1.0, int(average * 15)).tolist()
    return next(night for night, point in enumerate(cusum(z, 0.5, limit), 1) if point.alarm)


@pytest.mark.parametrize(("limit", "shift", "average", "charts"), RUN_LENGTHS)
def test_simulated_charts_run_as_long_as_the_markov_chain_says(
    limit: float, shift: float, average: float, charts: int
) -> None:
    random = numpy.random.default_rng(11)
    lengths = [_run_length(random, limit, shift, average) for _ in range(charts)]
    error = float(numpy.std(lengths)) / math.sqrt(charts)
    assert float(numpy.mean(lengths)) == pytest.approx(average, abs=4 * error)


def test_the_simulated_run_lengths_are_those_of_the_shared_vectors(vectors: Any) -> None:
    arls = {
        (v["inputs"]["h"], v["inputs"]["shift"]): v["expected"]["arl"] for v in vectors("cusum_arl")
    }
    for limit, shift, average, _ in RUN_LENGTHS:
        assert arls[limit, shift] == pytest.approx(average, abs=2e-4)


def test_the_sum_follows_the_recursion() -> None:
    points = cusum([0.0, -1.0, -2.0, 0.0, 3.0, -9.0])
    assert [point.s for point in points] == [0.0, 0.5, 2.0, 1.5, 0.0, 8.5]
    assert [point.alarm for point in points] == [False] * 5 + [True]


def test_each_night_is_compared_with_the_mean_of_the_earlier_ones() -> None:
    z = self_starting([1.0, 3.0, 2.0, 6.0])
    assert z == pytest.approx([0.0, 2 * math.sqrt(1 / 2), 0.0, 4 * math.sqrt(3 / 4)])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(-5, 5))
def test_a_constant_error_of_the_reference_changes_nothing(
    history: list[float], offset: float
) -> None:
    shifted = self_starting([value + offset for value in history])
    assert shifted == pytest.approx(self_starting(history), abs=1e-9)


def test_a_lasting_drop_of_two_standard_deviations_alarms_within_days() -> None:
    random = numpy.random.default_rng(3)
    nights = numpy.concatenate([random.normal(0, 1, 60), random.normal(-2, 1, 20)]) * math.sqrt(
        0.017 / 1319
    )
    points = drift(nights, 0.017, 1319)
    assert not any(point.alarm for point in points[:60])
    assert any(point.alarm for point in points[60:75])


def test_a_steady_gain_never_alarms() -> None:
    assert not any(point.alarm for point in drift([i / 100 for i in range(50)], 0.01, 1000))


def test_an_endpoint_that_never_varied_is_charted_in_single_flips() -> None:
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
def test_a_history_that_cannot_be_charted_is_refused(
    arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        drift(*arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("slack", "limit"), [(-0.1, 8.0), (0.5, 0.0), (math.nan, 8.0), (0.5, math.inf)]
)
def test_a_chart_without_sense_is_refused(slack: float, limit: float) -> None:
    with pytest.raises(ServeEvalError, match="do not make a chart") as caught:
        cusum([0.0], slack, limit)
    assert caught.value.hint
