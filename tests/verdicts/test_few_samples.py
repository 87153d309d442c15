"""A reference that was measured with few samples is not taken as better known than it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import (
    AccuracySpec,
    Hypothesis,
    Metric,
    Reference,
    ReferenceRuns,
    TaskResult,
    VerdictOutcome,
)
from serve_eval.stats.intervals import subtract, wilson
from serve_eval.verdicts.reference_noise import describe_few, find_interval, hold_n
from serve_eval.verdicts.rules.classic import judge


def _reference(value: float, n: int | None) -> Reference:
    runs = None
    if n is not None:
        runs = ReferenceRuns(values=(value,), n=n, sigma=0.0, samples="s.json", sha256="0")
    return Reference(task="t", model="m", spec=AccuracySpec(), value=value, runs=runs)


def _result(right: int, planned: int) -> TaskResult:
    value = 100.0 * right / planned
    low, high = wilson(right, planned, 0.05)
    return TaskResult(
        task="t",
        metric=Metric(name="accuracy"),
        planned=planned,
        scored=planned,
        failed=0,
        value=value,
        bounds=(value, value),
        outcomes={},
        failures={},
        truncated=0,
        stopped_in_reasoning=0,
        parts={},
        breakdown={},
        interval=(100.0 * low, 100.0 * high),
    )


def test_a_sound_endpoint_does_not_fail_a_reference_of_ten_samples() -> None:
    reference = _reference(90.0, 10)
    held, notes = hold_n(Hypothesis(num_samples=500), reference, 500)
    assert judge(_result(419, 500), reference, held).outcome is VerdictOutcome.PASS
    assert held.num_samples == 10
    assert notes == (
        "the reference has 10 of these 500 samples: its own value is uncertain by ±31.0 points,"
        " and the run is judged with n = 10",
    )
    # What the smaller number can show still fails.
    assert judge(_result(200, 500), reference, held).outcome is VerdictOutcome.FAIL


@pytest.mark.parametrize("n", [None, 4104, 4096, 14042])
def test_a_reference_of_all_samples_or_of_an_unknown_number_changes_nothing(n: int | None) -> None:
    given = Hypothesis(num_samples=4096)
    assert hold_n(given, _reference(70.0, n), 4104) == (given, ())


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.floats(0.1, 50.0, allow_subnormal=False))
def test_the_smaller_number_errs_towards_pass(asked: int, known: int, sigma: float) -> None:
    held, _ = hold_n(Hypothesis(num_samples=asked, sigma=sigma), _reference(50.0, known), asked)
    assert held.num_samples is not None
    exact = math.sqrt(sigma**2 / asked + sigma**2 / known)
    assert math.sqrt(2.0 * sigma**2 / held.num_samples) >= exact * (1.0 - 1e-12)


@pytest.mark.parametrize(
    ("a", "n", "b", "m", "low", "high"),
    [  # Newcombe 1998, table II, method 10
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (10, 10, 0, 20, 0.6791, 1.0),
        (10, 10, 0, 10, 0.6075, 1.0),
    ],
)
def test_the_interval_of_a_difference_is_that_of_the_published_examples(
    a: int, n: int, b: int, m: int, low: float, high: float
) -> None:
    found = subtract(a / n, wilson(a, n, 0.05), b / m, wilson(b, m, 0.05))
    assert found == pytest.approx((low, high), abs=5e-5)


def test_a_constant_is_exact_and_a_reference_of_few_samples_widens_the_interval() -> None:
    run = _result(419, 500)
    assert run.value is not None
    assert run.interval is not None
    assert find_interval(run, _reference(90.0, None)) is None
    exact = subtract(run.value, run.interval, 90.0, None)
    assert exact == (run.interval[0] - 90.0, run.interval[1] - 90.0)
    ends = find_interval(run, _reference(90.0, 10))
    assert ends == pytest.approx((59.6, 98.2), abs=0.1)
    low, high = subtract(run.value, run.interval, 90.0, ends)
    assert low < exact[0]
    assert high > 0.0  # no drop is proven
    # A reference of more prompts than the run's is that of the run's own.
    assert find_interval(run, _reference(90.0, 5000)) == find_interval(run, _reference(90.0, 500))


def test_a_warning_names_the_drop_that_few_samples_detect() -> None:
    said = describe_few(10, 500, Hypothesis(num_samples=500))
    assert said == "10 of 500 samples: detects only drops of 55.6 points or more"
    strict = Hypothesis(num_samples=20, sigma=0.0, alpha=0.5)
    assert describe_few(5, 20, strict) == "5 of 20 samples"
    assert describe_few(500, 500, Hypothesis()) is None
    assert describe_few(3, None, Hypothesis()) is None
