"""Test classic tests and the number of samples that they need."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import Decision, classic_test, decide, num_samples_for, power_table
from serve_eval.stats.planning import (
    classic_power,
    compute_paired_power,
    compute_pairs,
    find_least_drop,
    noninferiority_power,
    num_noninferior_for,
    num_pairs_for,
)

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
    n,
    reference,
    sigma,
    alpha,
    beta,
    better,
    theta,
    threshold,
):
    test = classic_test(n, reference, sigma, alpha, beta, better)
    assert test.theta == pytest.approx(theta, abs=5e-7)
    assert test.threshold == pytest.approx(threshold, abs=5e-7)


def test_the_shared_vectors_hold_to_their_tolerance(shared):
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


def test_the_power_table_is_the_readme_table_of_the_suite():
    rows = power_table(14042, 50, 0.05, 0.2)
    assert [n for n, _ in rows] == [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 14042]
    assert rows[-1][1].threshold == pytest.approx(-0.981517, abs=5e-7)


def test_a_total_that_is_a_power_of_two_stands_once_in_the_table():
    assert [n for n, _ in power_table(64, 50, 0.05, 0.2)] == [32, 64]
    assert [n for n, _ in power_table(10, 50, 0.05, 0.2)] == [10]


def test_a_new_task_with_theta_3_needs_3435_samples():
    assert num_samples_for(3.0, 50.0, 0.05, 0.2) == 3435


@given(st.floats(0.5, 30), st.floats(1, 80), st.floats(0.001, 0.4), st.floats(0.01, 0.4))
def test_planned_samples_reach_theta_and_one_less_does_not(theta, sigma, alpha, beta):
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
def test_a_decision_needs_both_bounds(bounds, threshold, better, decision):
    assert decide(bounds, threshold, better) is decision


@given(st.floats(-100, 100), st.floats(0, 50), st.floats(0, 50), st.booleans())
def test_a_better_value_never_makes_the_decision_worse(value, width, gain, better):
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
def test_a_parameter_out_of_range_is_named(change, message):
    arguments = {"n": 100, "reference": 50.0, "sigma": 50.0, "alpha": 0.05, "beta": 0.2} | change
    with pytest.raises(ServeEvalError, match=message):
        classic_test(**arguments)


def test_the_paired_formula_equals_its_vectors():
    assert compute_pairs(0.0275, 0.0615, 0.05, 0.2) == pytest.approx(500.6829087123065, abs=1e-9)
    assert compute_pairs(0.0484, 0.0824, 0.05, 0.2) == pytest.approx(215.36999221719884, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance_planning(vectors):
    for vector in vectors("n_paired"):
        inputs = dict(vector["inputs"])
        n = compute_pairs(inputs["drop"], inputs["flip_rate"], inputs["alpha"], inputs["beta"])
        assert n == pytest.approx(vector["expected"]["n"], abs=vector["tolerance"]), vector["id"]
    for vector in vectors("n_unpaired"):
        inputs, n = vector["inputs"], vector["expected"]["n"]
        assert num_samples_for(**inputs) == math.ceil(n)
        theta = classic_test(1, 0.0, inputs["sigma"], inputs["alpha"], inputs["beta"]).theta
        assert (theta / inputs["theta"]) ** 2 == pytest.approx(n, abs=vector["tolerance"])


# flip rate -> classic false alarms, power at theta, at theta / 2; exact McNemar level, power at
# theta / 2; n = 4096
MMLU = [
    (0.011, 0.0, 0.999, 0.0364, 0.037, 1.000),
    (0.034, 1.4e-10, 0.992, 0.097, 0.042, 0.991),
    (0.088, 4e-5, 0.961, 0.187, 0.045, 0.858),
    (0.191, 0.0039, 0.899, 0.265, 0.046, 0.605),
]


@pytest.mark.parametrize(
    ("flip_rate", "alarms", "at_theta", "at_half", "level", "paired_half"), MMLU
)
def test_power_on_mmlu_equals_the_table_of_the_method(
    flip_rate,
    alarms,
    at_theta,
    at_half,
    level,
    paired_half,
):
    assert classic_power(0.0, 4096, flip_rate, 0.05) == pytest.approx(alarms, abs=5e-5)
    assert classic_power(0.0275, 4096, flip_rate, 0.05) == pytest.approx(at_theta, abs=1.1e-3)
    assert classic_power(0.01375, 4096, flip_rate, 0.05) == pytest.approx(at_half, abs=1.1e-3)
    assert compute_paired_power(0.0, 4096, flip_rate, 0.05, mid_p=False) == pytest.approx(
        level, abs=5e-4
    )
    assert compute_paired_power(0.01375, 4096, flip_rate, 0.05, mid_p=False) == pytest.approx(
        paired_half, abs=5e-4
    )
    assert 0.049 < compute_paired_power(0.0, 4096, flip_rate, 0.05) < 0.05


@pytest.mark.parametrize(
    ("n", "flip_rate", "level"), [(198, 0.034, 0.036), (1319, 0.034, 0.049), (198, 0.088, 0.0486)]
)
def test_the_exact_level_of_mid_p_equals_the_table_of_the_method(n, flip_rate, level):
    assert compute_paired_power(0.0, n, flip_rate, 0.05) == pytest.approx(level, abs=5e-4)


def test_the_level_of_tango_at_the_boundary_stays_close_to_alpha():
    for n in (200, 1319):
        for margin in (0.01, 0.03):
            assert 0.03 < noninferiority_power(margin, n, 0.034, 0.05, drop=margin) < 0.056


def test_needed_prompts_come_within_three_percent_of_the_table_of_the_method():
    """The table was read off a coarse grid of n; these are the exact values."""
    assert num_noninferior_for(0.01, 0.011, 0.05, 0.2) == 847
    assert num_noninferior_for(0.01, 0.034, 0.05, 0.2) == pytest.approx(2235, rel=0.03)
    assert num_noninferior_for(0.02, 0.088, 0.05, 0.2) == pytest.approx(1407, rel=0.03)
    assert num_noninferior_for(0.05, 0.191, 0.05, 0.2) == pytest.approx(492, rel=0.03)
    for flip_rate, n in ((0.011, 345), (0.034, 546), (0.088, 1008), (0.191, 1857)):
        assert num_pairs_for(0.0275, flip_rate, 0.05, 0.2, mid_p=False) == pytest.approx(
            n, rel=0.01
        )


def test_without_any_flip_268_identical_answers_exclude_one_point():
    assert num_noninferior_for(0.01, 0.0, 0.05, 0.2) == 268


def test_the_planned_number_has_the_power_and_one_less_has_not():
    n = num_pairs_for(0.02, 0.034, 0.05, 0.2)
    assert (
        compute_paired_power(0.02, n, 0.034, 0.05)
        >= 0.8
        > compute_paired_power(0.02, n - 1, 0.034, 0.05)
    )


@pytest.mark.parametrize(("n", "flip_rate"), [(8, 0.0), (198, 0.034), (1319, 0.19), (4096, 0.034)])
def test_the_least_drop_is_proven_and_a_little_less_is_not(n, flip_rate):
    drop = find_least_drop(n, flip_rate, 0.05, 0.2)
    assert compute_paired_power(drop, n, flip_rate, 0.05) >= 0.8
    assert compute_paired_power(drop - 2e-5, n, flip_rate, 0.05) < 0.8


def test_few_prompts_prove_no_drop():
    assert find_least_drop(3, 0.034, 0.05, 0.2) is None


def test_power_where_every_prompt_changes_or_none_does():
    assert compute_paired_power(1.0, 10, 0.0, 0.05) == 1.0
    assert compute_paired_power(0.0, 10, 0.0, 0.05) == 0.0
    assert classic_power(0.0, 10, 0.0, 0.05) == 0.0
    assert classic_power(1.0, 10, 0.0, 0.05) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compute_pairs(0.0, 0.1, 0.05, 0.2), "a drop of 0.0 cannot come from"),
        (lambda: compute_pairs(0.2, 0.1, 0.05, 0.2), "a drop of 0.2 cannot come from"),
        (lambda: compute_pairs(0.1, 0.1, 0.0, 0.2), "alpha"),
        (lambda: compute_pairs(0.1, 0.1, 0.05, 1.0), "beta"),
        (lambda: classic_power(2.75, 100, 0.034, 0.05), "not proportions of one set"),
        (lambda: classic_power(0.1, 100, -0.1, 0.05), "not proportions of one set"),
        (lambda: compute_paired_power(0.1, 0, 0.034, 0.05), "number of prompts must be 1 or more"),
        (lambda: compute_paired_power(0.1, 10, 0.034, 1.0), "alpha"),
        (
            lambda: noninferiority_power(1.0, 10, 0.034, 0.05),
            "margin must lie strictly between 0 and 1",
        ),
        (
            lambda: num_noninferior_for(0.0, 0.034, 0.05, 0.2),
            "margin must lie strictly between 0 and 1",
        ),
        (lambda: num_noninferior_for(0.01, 0.034, 0.05, 0.0), "beta"),
        (lambda: num_pairs_for(0.5, 0.6, 0.05, 0.2), "a flip rate of 0.6 are not proportions"),
        (lambda: num_noninferior_for(1e-9, 0.9, 0.05, 0.2), "more than 10000000 prompts"),
    ],
)
def test_plans_that_cannot_be_made_are_refused(call, message):
    with pytest.raises(ServeEvalError, match=message) as caught:
        call()
    assert caught.value.hint
