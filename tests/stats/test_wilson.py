"""Wilson's interval of a proportion."""

from __future__ import annotations

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.intervals import wilson, wilson_of_repeats


@pytest.mark.parametrize(
    ("total", "n", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals_are_met(total: int, n: int, low: float, high: float) -> None:
    assert wilson(total, n, 0.05) == pytest.approx((low, high), abs=5e-5)


def test_all_right_is_the_mirror_of_all_wrong() -> None:
    low, high = wilson(20, 20, 0.05)
    assert (1 - low, 1 - high) == pytest.approx(wilson(0, 20, 0.05)[::-1])


@pytest.mark.parametrize(("total", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_sums_are_refused(total: int, n: int) -> None:
    with pytest.raises(ServeEvalError):
        wilson(total, n, 0.05)


def test_equal_repeats_are_one_answer_and_independent_ones_are_many() -> None:
    same = [1.0] * 12 + [0.0] * 18
    assert wilson_of_repeats(same, 64, 0.05) == pytest.approx(wilson(12, 30, 0.05))
    half = numpy.random.default_rng(2).binomial(64, 0.5, 30) / 64
    low, high = wilson_of_repeats(half, 64, 0.05)
    assert 0.04 < high - low < 0.06  # one answer to each question has .34
    assert wilson_of_repeats([1.0] * 30, 64, 0.05) == wilson(30, 30, 0.05)


@pytest.mark.parametrize(("a", "b"), [(50.0, 50.0), (0.2, 0.1), (20.0, 1.0)])
def test_the_interval_of_repeats_contains_the_value_of_questions_like_these(
    a: float, b: float
) -> None:
    random = numpy.random.default_rng(9)
    inside = 0
    for _ in range(400):
        means = random.binomial(16, random.beta(a, b, 30)) / 16
        low, high = wilson_of_repeats(means, 16, 0.05)
        inside += low <= a / (a + b) <= high
    assert inside >= 0.92 * 400
