from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.betting import GRID, log_wealth, mean_lower_bound
from serve_eval.stats.early_stop import Wealth

MIXED = [0, 0, -1, 0, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
DOWN = [-1, 0, -1, -1, 0, -1, 0, -1, -1, -1]
REAL = [0.1, -0.4, 0.25, 0, -0.05, 0.3, -0.9, 0.2]

# differences, null, evidence for -> log wealth at the end, its maximum; by a plain loop
CASES: list[tuple[list[float], float, str, float, float]] = [
    ([0.0] * 60, -0.0275, "pass", 0.807534074178761, 0.807534074178761),
    ([0.0] * 60, 0.0, "fail", 0.0, 0.0),
    (MIXED, -0.0275, "pass", -0.3089009793424417, 0.021464760844944954),
    (MIXED, 0.0, "fail", -0.4144721020685224, 0.32208349916911344),
    (DOWN, -0.01817, "pass", -1.2395034553334516, -0.4743815300729676),
    (DOWN, 0.0, "fail", 3.2871229575033527, 3.2871229575033527),
    (REAL, -0.0275, "pass", -0.2961108988481167, 0.09710822125314472),
    (REAL, 0.0, "fail", 0.07097445116460271, 0.1571581706831996),
]


def _both_ways(
    differences: list[float], null: float, side: str, last: float, largest: float, within: float
) -> None:
    sign = 1.0 if side == "pass" else -1.0
    wealth, logs = Wealth(sign * null, None, -1.0, 1.0), []
    for difference in differences:
        wealth.bet(sign * difference)
        logs.append(wealth.log)
    assert logs[-1] == pytest.approx(last, abs=within)
    assert max(logs) == pytest.approx(largest, abs=within)
    assert log_wealth(sign * numpy.array(differences, dtype=float), sign * null) == pytest.approx(
        last, abs=within
    )


@pytest.mark.parametrize(("differences", "null", "side", "last", "largest"), CASES)
def test_the_wealth_equals_a_plain_loop(
    differences: list[float], null: float, side: str, last: float, largest: float
) -> None:
    _both_ways(differences, null, side, last, largest, 1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
    for vector in vectors("betting"):
        inputs, expected = vector["inputs"], vector["expected"]
        assert tuple(inputs["grid"]) == GRID
        assert inputs["population"] is None
        _both_ways(
            inputs["differences"],
            inputs["null"],
            inputs["evidence_for"],
            expected["log_wealth_last"],
            expected["log_wealth_max"],
            vector["tolerance"],
        )


VALUES = st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.0, 0.0, 0.4, 1.0]), min_size=1, max_size=60)


@given(VALUES, st.sampled_from([0.2, 0.05, 0.001]))
def test_the_bound_lies_below_the_mean_and_its_test_rejects_exactly_at_it(
    values: list[float], alpha: float
) -> None:
    lower = mean_lower_bound(values, alpha)
    assert -1.0 <= lower <= float(numpy.mean(values)) + 1e-12
    if lower > -1.0:
        assert log_wealth(values, lower - 1e-6) >= -math.log(alpha) - 1e-4
        assert log_wealth(values, lower + 1e-6) <= -math.log(alpha) + 1e-4


@given(VALUES, st.data())
def test_a_better_value_never_lowers_the_bound(values: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    better = [1.0 if i == place else value for i, value in enumerate(values)]
    assert mean_lower_bound(better, 0.05) >= mean_lower_bound(values, 0.05) - 1e-12


def test_identical_answers_say_little_when_they_are_few() -> None:
    assert mean_lower_bound([0.0], 0.05) < -0.9
    assert mean_lower_bound([0.0] * 1000, 0.05) == pytest.approx(-0.0046, abs=2e-4)


def test_an_impossible_hypothesis_is_refuted_and_an_empty_one_is_not() -> None:
    assert log_wealth([0.0], -1.0) == math.inf
    assert log_wealth([-1.0], -1.0) == 0.0
    assert log_wealth([1.0], 1.0) == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "one or more"), ([1.5], r"outside -1\.\.1"), ([math.nan], "position 0 is nan")],
)
def test_values_outside_the_range_are_refused(values: list[float], message: str) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        log_wealth(values, 0.0)
    assert caught.value.hint


def test_the_bound_checks_its_level() -> None:
    with pytest.raises(ServeEvalError, match="alpha"):
        mean_lower_bound([0.0], 0.0)
