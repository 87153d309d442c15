"""Test the simulated endpoints on which the calibration rests."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy
import pytest

from tests.stats.simulation import altered, chance_below, endpoints, run, turned

MANY = 400_000


@pytest.mark.parametrize(
    ("flip_rate", "accuracy"), [(0.0, 0.7), (0.034, 0.9), (0.191, 0.7), (1 / 3, 0.5)]
)
def test_the_mixture_has_its_accuracy_and_two_runs_differ_with_the_flip_rate(
    flip_rate: float, accuracy: float
) -> None:
    random = numpy.random.default_rng(1)
    chances = endpoints(random, MANY, flip_rate=flip_rate, accuracy=accuracy)
    error = 5 * math.sqrt(0.25 / MANY)
    assert chances.mean() == pytest.approx(accuracy, abs=error)
    assert ((chances > 0.0) & (chances < 1.0)).mean() == pytest.approx(3 * flip_rate, abs=error)
    down, up = turned(run(random, chances), run(random, chances))
    assert (down / MANY, up / MANY) == pytest.approx((flip_rate / 2, flip_rate / 2), abs=error)


def test_a_regression_turns_right_answers_wrong_and_a_change_without_one_turns_as_many_the_other_way() -> (  # noqa: E501
    None
):
    random = numpy.random.default_rng(2)
    before = endpoints(random, MANY, flip_rate=0.05)
    error = 5 * math.sqrt(0.25 / MANY)
    for to_wrong, to_right in ((0.03, 0.0), (0.02, 0.02), (0.0, 0.0)):
        after = altered(random, before, to_wrong=to_wrong, to_right=to_right)
        down, up = ((before - after) == 1.0).mean(), ((after - before) == 1.0).mean()
        assert (down, up) == pytest.approx((to_wrong, to_right), abs=error)
        assert ((after == before) | (abs(after - before) == 1.0)).all()


def test_impossible_endpoints_are_refused() -> None:
    random = numpy.random.default_rng(3)
    with pytest.raises(
        ValueError, match=r"no mixture has the flip rate 0\.2 and the accuracy 0\.9"
    ):
        endpoints(random, 10, flip_rate=0.2, accuracy=0.9)
    with pytest.raises(ValueError, match=r"0\.8 of the prompts cannot be turned"):
        altered(random, endpoints(random, MANY, flip_rate=0.0, accuracy=0.7), to_wrong=0.8)


def test_turned_counts_each_row_by_itself() -> None:
    reference = numpy.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    candidate = numpy.array([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    down, up = turned(reference, candidate)
    assert (down.tolist(), up.tolist()) == ([2, 0], [1, 1])


@pytest.mark.parametrize("limit", [-3.5, -0.5, 0.5, 2.5, 9.5])
def test_the_distribution_of_the_difference_equals_its_multinomial_sum(limit: float) -> None:
    n, down, up = 9, Fraction(1, 5), Fraction(1, 8)
    total = sum(
        math.comb(n, b) * math.comb(n - b, c) * down**b * up**c * (1 - down - up) ** (n - b - c)
        for b in range(n + 1)
        for c in range(n - b + 1)
        if c - b < limit
    )
    assert chance_below(n, float(down), float(up), limit) == pytest.approx(float(total), abs=1e-12)
