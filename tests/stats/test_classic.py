from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import Decision, classic_test, decide, num_samples_for, power_table

# n, reference, sigma, alpha, beta, higher is better -> theta, threshold. The published table of the
# suite's README for 14042 questions, and the parameters that the suite registers per task.
CASES = [
    (32, 0.0, 50.0, 0.05, 0.2, True, 31.080936, -20.560670),
    (64, 0.0, 50.0, 0.05, 0.2, True, 21.977540, -14.538589),
    (512, 0.0, 50.0, 0.05, 0.2, True, 7.770234, -5.140168),
    (4096, 0.0, 50.0, 0.05, 0.2, True, 2.747193, -1.817324),
    (8192, 0.0, 50.0, 0.05, 0.2, True, 1.942558, -1.285042),
    (14042, 0.0, 50.0, 0.05, 0.2, True, 1.483729, -0.981517),
    (4096, 68.17, 50.0, 0.05, 0.2, True, 2.747193, 66.352676),
    (1319, 74.20, 50.0, 0.05, 0.2, True, 4.841129, 70.997495),
    (198, 44.5, 50.0, 0.05, 0.2, True, 12.495006, 36.234300),
    (512, 25.5, 11.06, 0.002, 0.2, True, 2.571300, 23.510471),
    (86, 7.663, 4.48, 0.01, 0.2, False, 2.164336, 9.252346),
    (32, 7.0, 50.0, 0.05, 0.2, False, 31.080936, 27.560670),
    (20, 99.0, 0.0, 0.5, 0.2, True, 0.0, 99.0),
]


@pytest.mark.parametrize(
    ("n", "reference", "sigma", "alpha", "beta", "better", "theta", "threshold"), CASES
)
def test_theta_and_threshold_equal_the_published_ones(
    n: int,
    reference: float,
    sigma: float,
    alpha: float,
    beta: float,
    better: bool,
    theta: float,
    threshold: float,
) -> None:
    test = classic_test(n, reference, sigma, alpha, beta, better)
    assert test.theta == pytest.approx(theta, abs=5e-7)
    assert test.threshold == pytest.approx(threshold, abs=5e-7)


def test_the_shared_vectors_hold_to_their_tolerance(shared: Path) -> None:
    vectors = json.loads((shared / "vectors" / "verdict_vectors.json").read_text())["vectors"]
    seen = 0
    for vector in vectors:
        inputs, expected = dict(vector["inputs"]), vector["expected"]
        if vector["kind"] == "classic":
            test = classic_test(**inputs)
            assert test.theta == pytest.approx(expected["theta"], abs=vector["tolerance"]), vector[
                "id"
            ]
            assert test.threshold == pytest.approx(
                expected["threshold"], abs=vector["tolerance"]
            ), vector["id"]
            seen += 1
        elif vector["kind"] == "classic_verdict":
            evaluated = inputs.pop("evaluated")
            threshold = classic_test(**inputs).threshold
            assert (
                decide((evaluated, evaluated), threshold, inputs["higher_is_better"]).value
                == expected["verdict"]
            )
            seen += 1
    assert seen == 14


def test_the_power_table_is_the_readme_table_of_the_suite() -> None:
    rows = power_table(14042, 50, 0.05, 0.2)
    assert [n for n, _ in rows] == [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 14042]
    assert rows[-1][1].threshold == pytest.approx(-0.981517, abs=5e-7)


def test_a_total_that_is_a_power_of_two_stands_once_in_the_table() -> None:
    assert [n for n, _ in power_table(64, 50, 0.05, 0.2)] == [32, 64]
    assert [n for n, _ in power_table(10, 50, 0.05, 0.2)] == [10]


def test_a_new_task_with_theta_3_needs_3435_samples() -> None:
    assert num_samples_for(3.0, 50.0, 0.05, 0.2) == 3435


@given(st.floats(0.5, 30), st.floats(1, 80), st.floats(0.001, 0.4), st.floats(0.01, 0.4))
def test_planned_samples_reach_theta_and_one_less_does_not(
    theta: float, sigma: float, alpha: float, beta: float
) -> None:
    n = num_samples_for(theta, sigma, alpha, beta)
    assert classic_test(n, 0, sigma, alpha, beta).theta <= theta * (1 + 1e-9)
    if n > 1:
        assert classic_test(n - 1, 0, sigma, alpha, beta).theta > theta * (1 - 1e-9)


@pytest.mark.parametrize(
    ("bounds", "threshold", "better", "decision"),
    [
        ((70.0, 70.0), 70.0, True, Decision.PASS),
        ((69.999, 69.999), 70.0, True, Decision.FAIL),
        ((69.0, 71.0), 70.0, True, Decision.UNDECIDED),
        ((69.0, 70.0), 70.0, True, Decision.UNDECIDED),
        ((70.0, 71.0), 70.0, True, Decision.PASS),
        ((9.0, 9.0), 9.0, False, Decision.PASS),
        ((9.1, 9.2), 9.0, False, Decision.FAIL),
        ((8.9, 9.2), 9.0, False, Decision.UNDECIDED),
    ],
)
def test_a_decision_needs_both_bounds(
    bounds: tuple[float, float], threshold: float, better: bool, decision: Decision
) -> None:
    assert decide(bounds, threshold, better) is decision


@given(st.floats(-100, 100), st.floats(0, 50), st.floats(0, 50), st.booleans())
def test_a_better_value_never_makes_the_decision_worse(
    value: float, width: float, gain: float, better: bool
) -> None:
    rank = {Decision.FAIL: 0, Decision.UNDECIDED: 1, Decision.PASS: 2}
    step = gain if better else -gain
    before = decide((value, value + width), 0.0, better)
    after = decide((value + step, value + width + step), 0.0, better)
    assert rank[after] >= rank[before]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "number of samples"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0}, "alpha"),
        ({"beta": 1.5}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": math.inf}, "sigma"),
        ({"reference": math.nan}, "reference"),
    ],
)
def test_a_parameter_out_of_range_is_named(change: dict[str, float], message: str) -> None:
    arguments = {"n": 100, "reference": 50.0, "sigma": 50.0, "alpha": 0.05, "beta": 0.2} | change
    with pytest.raises(ServeEvalError, match=message):
        classic_test(**arguments)  # type: ignore[arg-type]
