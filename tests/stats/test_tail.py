"""Test the estimate of a tail on distributions whose tail is known."""

from __future__ import annotations

import math

import numpy
import pytest

from serve_eval.stats.distances import count_unlikely, share_beyond


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
def test_the_tail_of_a_power_law_is_found(power: float) -> None:
    random = numpy.random.default_rng(7)
    limit, shares = 10.0 ** (4 / power), []
    for _ in range(200):
        values = random.pareto(power, 400) + 1
        shares.append(share_beyond(values[values < limit].tolist(), limit))
    assert math.exp(numpy.mean(numpy.log(shares))) == pytest.approx(1e-4, rel=0.9)


def test_a_normal_tail_falls_steeply() -> None:
    random = numpy.random.default_rng(7)
    values = numpy.abs(0.02 * random.standard_normal(300)).tolist()
    assert share_beyond(values, 0.25) < 1e-5


def test_what_was_seen_needs_no_estimate() -> None:
    assert share_beyond([0.0] * 90 + [1.0] * 10, 0.5) == 0.1
    assert share_beyond([0.1] * 100, 0.5) == 0.0
    assert share_beyond([0.0] * 100, 0.5) == 0.0
    assert share_beyond([0.1] * 5, 0.5) == 1.0


@pytest.mark.parametrize(("mean", "count"), [(0.0, 1), (0.005, 1), (0.02, 2), (0.1, 2), (4.0, 10)])
def test_a_number_that_is_reached_in_one_of_a_hundred_is_unlikely(mean: float, count: int) -> None:
    """4.0: the chance of 9 or more is .021, that of 10 or more .008."""
    assert count_unlikely(mean, 0.01) == count
