"""Bets for ever: what they may gain under the hypothesis, and that a late change is noticed."""

from __future__ import annotations

import math
from itertools import combinations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import vigil
from serve_eval.stats.betting import GRID


def test_the_shares_of_all_rounds_sum_to_one() -> None:
    begun = [vigil.beginning(t) for t in range(1, 5001)]
    assert min(begun) > 0.0
    assert math.isclose(math.fsum(begun) + vigil.kept(5000), 1.0)
    assert vigil.kept(0) == 1.0
    with pytest.raises(ServeEvalError):
        vigil.beginning(0)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6),
    st.integers(1, 4),
)
def test_no_stake_grows_on_average_where_the_pool_is_as_good_as_the_hypothesis_says(
    prompts: list[tuple[float, float]], asked: int
) -> None:
    """Exactly, over every subset and every answer: prompts have a chance of a right answer and any usual score."""
    null = math.fsum(chance - usual for chance, usual in prompts) / len(prompts)
    if null > 0.95:
        return
    subsets = list(combinations(prompts, min(asked, len(prompts))))
    mean = numpy.zeros(len(GRID))
    for subset in subsets:
        product = numpy.ones(len(GRID))
        for chance, usual in subset:
            right, wrong = (numpy.exp(vigil.gains([value - usual], null, 1.0)) for value in (1.0, 0.0))
            product *= chance * right + (1.0 - chance) * wrong
        mean += product / len(subsets)
    assert (mean <= 1.0 + 1e-9).all()


def test_the_recursion_is_the_mixture_over_all_beginnings() -> None:
    random = numpy.random.default_rng(0)
    gained = random.normal(size=(7, len(GRID)))
    logs = numpy.full(len(GRID), -numpy.inf)
    for t, one in enumerate(gained, 1):
        logs = vigil.grown(logs, t, one)
    wealth = vigil.kept(7)
    for k in range(1, 8):
        wealth += vigil.beginning(k) * float(numpy.exp(gained[k - 1 :].sum(axis=0)).mean())
    assert math.isclose(float(vigil.log_evidence(logs, 7)), math.log(wealth))


def test_a_change_is_noticed_after_months_of_healthy_rounds() -> None:
    logs, t = numpy.full(len(GRID), -numpy.inf), 0
    good, bad = [0.0] * 20, [0.0] * 12 + [-1.0] * 8
    for _ in range(20_000):
        t += 1
        logs = vigil.grown(logs, t, vigil.gains(good, -0.03, 1.0))
    assert vigil.log_evidence(logs, t) < 0.0
    for _ in range(8):
        t += 1
        logs = vigil.grown(logs, t, vigil.gains(bad, -0.03, 1.0))
    assert vigil.log_evidence(logs, t) >= math.log(200.0)


def test_many_watches_are_played_at_once_as_each_alone() -> None:
    values = numpy.array([[0.0, -1.0], [0.5, 0.0]])
    together = vigil.gains(values, [-0.1, 0.2], 1.0)
    for row, null, found in zip(values, (-0.1, 0.2), together, strict=True):
        assert numpy.allclose(vigil.gains(row, null, 1.0), found)
    assert (vigil.gains([], 0.0, 1.0) == 0.0).all()


def test_there_is_no_bet_against_what_cannot_be_missed() -> None:
    with pytest.raises(ServeEvalError, match="no bet"):
        vigil.gains([0.0], 1.0, 1.0)


def test_the_floor_is_below_the_mean_and_nearer_to_it_with_more_passes() -> None:
    first = numpy.ones(200)
    few, many = (vigil.floor(first, numpy.ones((passes, 200)), 0.002) for passes in (1, 7))
    assert few < many < 1.0
    assert 1.0 - many < (math.log(500) + 2.5) / 1400


def test_the_floor_is_too_high_no_more_often_than_it_says() -> None:
    random, over = numpy.random.default_rng(1), 0
    for _ in range(300):
        chances = numpy.where(random.random(30) < 0.5, 1.0, random.random(30))
        scores = (random.random((4, 30)) < chances).astype(float)
        over += vigil.floor(scores[0], scores[1:], 0.1) > chances.mean()
    assert over <= 45  # binomial(300, .1): more with probability .002
