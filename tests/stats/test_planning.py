from __future__ import annotations

import math
from typing import Any

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import classic_test, num_samples_for
from serve_eval.stats.planning import (
    classic_power,
    compute_paired_power,
    compute_pairs,
    find_least_drop,
    noninferiority_power,
    num_noninferior_for,
    num_pairs_for,
)


def test_the_paired_formula_equals_its_vectors() -> None:
    assert compute_pairs(0.0275, 0.0615, 0.05, 0.2) == pytest.approx(500.6829087123065, abs=1e-9)
    assert compute_pairs(0.0484, 0.0824, 0.05, 0.2) == pytest.approx(215.36999221719884, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
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
    flip_rate: float,
    alarms: float,
    at_theta: float,
    at_half: float,
    level: float,
    paired_half: float,
) -> None:
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
def test_the_exact_level_of_mid_p_equals_the_table_of_the_method(
    n: int, flip_rate: float, level: float
) -> None:
    assert compute_paired_power(0.0, n, flip_rate, 0.05) == pytest.approx(level, abs=5e-4)


def test_the_level_of_tango_at_the_boundary_stays_close_to_alpha() -> None:
    for n in (200, 1319):
        for margin in (0.01, 0.03):
            assert 0.03 < noninferiority_power(margin, n, 0.034, 0.05, drop=margin) < 0.056


def test_needed_prompts_come_within_three_percent_of_the_table_of_the_method() -> None:
    """The table was read off a coarse grid of n; these are the exact values."""
    assert num_noninferior_for(0.01, 0.011, 0.05, 0.2) == 847
    assert num_noninferior_for(0.01, 0.034, 0.05, 0.2) == pytest.approx(2235, rel=0.03)
    assert num_noninferior_for(0.02, 0.088, 0.05, 0.2) == pytest.approx(1407, rel=0.03)
    assert num_noninferior_for(0.05, 0.191, 0.05, 0.2) == pytest.approx(492, rel=0.03)
    for flip_rate, n in ((0.011, 345), (0.034, 546), (0.088, 1008), (0.191, 1857)):
        assert num_pairs_for(0.0275, flip_rate, 0.05, 0.2, mid_p=False) == pytest.approx(
            n, rel=0.01
        )


def test_without_any_flip_268_identical_answers_exclude_one_point() -> None:
    assert num_noninferior_for(0.01, 0.0, 0.05, 0.2) == 268


def test_the_planned_number_has_the_power_and_one_less_has_not() -> None:
    n = num_pairs_for(0.02, 0.034, 0.05, 0.2)
    assert (
        compute_paired_power(0.02, n, 0.034, 0.05)
        >= 0.8
        > compute_paired_power(0.02, n - 1, 0.034, 0.05)
    )


@pytest.mark.parametrize(("n", "flip_rate"), [(8, 0.0), (198, 0.034), (1319, 0.19), (4096, 0.034)])
def test_the_least_drop_is_proven_and_a_little_less_is_not(n: int, flip_rate: float) -> None:
    drop = find_least_drop(n, flip_rate, 0.05, 0.2)
    assert drop is not None
    assert compute_paired_power(drop, n, flip_rate, 0.05) >= 0.8
    assert compute_paired_power(drop - 2e-5, n, flip_rate, 0.05) < 0.8


def test_few_prompts_prove_no_drop() -> None:
    assert find_least_drop(3, 0.034, 0.05, 0.2) is None


def test_power_where_every_prompt_changes_or_none_does() -> None:
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
def test_plans_that_cannot_be_made_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        call()
    assert caught.value.hint
