"""Test endless bets: their gain under the hypothesis, and that a late change is noticed."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import betting
from serve_eval.stats.betting import GRID, mean_lower_bound
from tests.stats.simulation import endpoints, run


def test_the_shares_of_all_rounds_sum_to_one() -> None:
    begun = [betting.compute_starting_share(t) for t in range(1, 5001)]
    assert min(begun) > 0.0
    assert math.isclose(math.fsum(begun) + betting.compute_waiting_share(5000), 1.0)
    assert betting.compute_waiting_share(0) == 1.0
    with pytest.raises(ServeEvalError):
        betting.compute_starting_share(0)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6),
    st.integers(1, 4),
)
def test_no_stake_grows_on_average_where_the_pool_is_as_good_as_the_hypothesis_says(
    prompts: list[tuple[float, float]], asked: int
) -> None:
    """Enumerate every subset and every answer.

    Prompts have a chance of a right answer and any usual score.
    """
    null = math.fsum(chance - usual for chance, usual in prompts) / len(prompts)
    if null > 0.95:
        return
    subsets = list(combinations(prompts, min(asked, len(prompts))))
    mean = numpy.zeros(len(GRID))
    for subset in subsets:
        growth = numpy.ones(len(GRID))
        for chance, usual in subset:
            right, wrong = (
                numpy.exp(betting.gains([value - usual], null, 1.0)) for value in (1.0, 0.0)
            )
            growth *= chance * right + (1.0 - chance) * wrong
        mean += growth / len(subsets)
    assert (mean <= 1.0 + 1e-9).all()


def test_the_recursion_is_the_mixture_over_all_beginnings() -> None:
    random = numpy.random.default_rng(0)
    gained = random.normal(size=(7, len(GRID)))
    logs = numpy.full(len(GRID), -numpy.inf)
    for t, one in enumerate(gained, 1):
        logs = betting.grow(logs, t, one)
    wealth = betting.compute_waiting_share(7)
    for k in range(1, 8):
        wealth += betting.compute_starting_share(k) * float(
            numpy.exp(gained[k - 1 :].sum(axis=0)).mean()
        )
    assert math.isclose(float(betting.log_evidence(logs, 7)), math.log(wealth))


def test_a_change_is_noticed_after_months_of_healthy_rounds() -> None:
    logs, t = numpy.full(len(GRID), -numpy.inf), 0
    good, bad = [0.0] * 20, [0.0] * 12 + [-1.0] * 8
    for _ in range(20_000):
        t += 1
        logs = betting.grow(logs, t, betting.gains(good, -0.03, 1.0))
    assert betting.log_evidence(logs, t) < 0.0
    for _ in range(8):
        t += 1
        logs = betting.grow(logs, t, betting.gains(bad, -0.03, 1.0))
    assert betting.log_evidence(logs, t) >= math.log(200.0)


def test_many_watches_are_played_at_once_as_each_alone() -> None:
    values = numpy.array([[0.0, -1.0], [0.5, 0.0]])
    together = betting.gains(values, [-0.1, 0.2], 1.0)
    for row, null, found in zip(values, (-0.1, 0.2), together, strict=True):
        assert numpy.allclose(betting.gains(row, null, 1.0), found)
    assert (betting.gains([], 0.0, 1.0) == 0.0).all()


def test_there_is_no_bet_against_what_cannot_be_missed() -> None:
    with pytest.raises(ServeEvalError, match="can be exceeded"):
        betting.gains([0.0], 1.0, 1.0)


@given(st.integers(1, 12), st.data())
def test_a_spread_subset_holds_every_place_equally_often(n: int, data: st.DataObject) -> None:
    """Try starts from 0 to 1 in small steps.

    No boundary between two subsets is inside a step.
    """
    asked = data.draw(st.integers(1, n))
    steps = 4 * math.lcm(n, asked)
    subsets = [betting.spread_subset(n, asked, (start + 0.5) / steps) for start in range(steps)]
    assert all(len(set(subset)) == asked for subset in subsets)
    counts = [sum(place in subset for subset in subsets) for place in range(n)]
    assert counts == [steps * asked // n] * n
    last = betting.spread_subset(n, asked, 1.0 - 2.0**-53)
    assert len(set(last)) == asked
    assert max(last) < n


@pytest.mark.parametrize(
    ("n", "asked", "start"), [(3, 4, 0.0), (3, 0, 0.0), (3, 1, 1.0), (3, 1, -0.1)]
)
def test_a_subset_that_cannot_be_chosen_is_refused(n: int, asked: int, start: float) -> None:
    with pytest.raises(ServeEvalError):
        betting.spread_subset(n, asked, start)


@given(st.lists(st.integers(0, 8).map(lambda right: right / 8), min_size=1, max_size=9), st.data())
def test_no_subset_has_more_room_than_the_highest_mean(
    usual: list[float], data: st.DataObject
) -> None:
    asked = data.draw(st.integers(1, len(usual)))
    highest = betting.highest_mean(usual, asked)
    start = data.draw(st.floats(0.0, 1.0, exclude_max=True))
    ordered = sorted(usual)
    mean = (
        sum(1.0 - ordered[place] for place in betting.spread_subset(len(usual), asked, start))
        / asked
    )
    assert mean <= highest + 1e-12
    assert highest >= 1.0 - sum(usual) / len(usual) - 1e-12


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=6),
    st.integers(1, 4),
    st.floats(0, 1),
)
def test_a_bet_on_a_rounds_mean_does_not_grow_whatever_its_answers_share(
    prompts: list[tuple[float, int]], most: int, share: float
) -> None:
    """Enumerate all rounds exactly.

    In a share of the rounds every answer is right. In the others the chances make the mean over the
    rounds as good as the hypothesis says. Answer by answer, the same rounds let the wealth grow.
    """
    prompts = sorted(prompts, key=lambda prompt: prompt[1])
    usual = [known / 4 for _, known in prompts]
    n, asked = len(prompts), min(most, len(prompts))
    mean = math.fsum(share + (1.0 - share) * chance for chance, _ in prompts) / n
    null = mean - math.fsum(usual) / n
    highest = betting.highest_mean(usual, asked)
    if null > highest - 0.05:
        return
    steps = 2 * math.lcm(n, asked)
    wealth = numpy.zeros(len(GRID))
    for start in range(steps):
        subset = betting.spread_subset(n, asked, (start + 0.5) / steps)
        for good, weight in ((True, share), (False, 1.0 - share)):
            for right in product((0.0, 1.0), repeat=asked):
                chance = weight
                for place, value in zip(subset, right, strict=True):
                    p = 1.0 if good else prompts[place][0]
                    chance *= p if value else 1.0 - p
                if chance:
                    value = (
                        math.fsum(x - usual[place] for place, x in zip(subset, right, strict=True))
                        / asked
                    )
                    wealth += chance * numpy.exp(betting.gains([value], null, highest)) / steps
    assert (wealth <= 1.0 + 1e-9).all()
    assert (wealth >= 1.0 - 1e-9).all()  # nothing is wasted either


def test_the_floor_is_below_the_mean_and_nearer_to_it_with_more_passes() -> None:
    few, many = (betting.floor(numpy.ones((passes, 200)), 0.002) for passes in (2, 8))
    assert few < many < 1.0
    assert 1.0 - many < (math.log(500) + 2.5) / 1400
    assert betting.floor(numpy.zeros((3, 50)), 0.002) == 0.0


def test_the_floor_is_where_the_wealth_of_all_passes_reaches_the_limit() -> None:
    """Compute by hand: each answer less the mean of the same prompt's earlier ones."""
    random = numpy.random.default_rng(2)
    scores = (random.random((5, 40)) < random.random(40) ** 0.2).astype(float)

    def wealth(chance: float) -> float:
        total = numpy.ones(len(GRID))
        for t in range(1, 5):
            usual = scores[:t].mean(axis=0)
            null = chance - usual.mean()
            for value in scores[t] - usual:
                total *= 1.0 + numpy.minimum(GRID, 1.0 / (1.0 + null)) * (value - null)
        return float(total.mean())

    floor = betting.floor(scores, 0.01)
    assert 0.5 < floor < scores.mean()
    assert wealth(floor) == pytest.approx(100.0, rel=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_floor_is_too_high_no_more_often_than_it_says(shift: float) -> None:
    """Answers may follow those of the pass before.

    A prompt that was wrong at first is then wrong more often.
    """
    random, over, trials = numpy.random.default_rng(1), 0, 300
    for _ in range(trials):
        chances = numpy.where(random.random(30) < 0.5, 1.0, random.random(30))
        first = (random.random(30) < chances).astype(float)
        later = chances - shift * (first == 0.0) * chances
        scores = numpy.vstack([first, (random.random((3, 30)) < later).astype(float)])
        over += betting.floor(scores, 0.1) > max(chances.mean(), later.mean())
    assert over <= 45  # binomial(300, .1): more with probability .002


def test_the_floor_is_nearer_than_against_the_first_pass_alone() -> None:
    random, nearer = numpy.random.default_rng(5), []
    for _ in range(40):
        scores = run(
            random,
            numpy.broadcast_to(endpoints(random, 200, flip_rate=0.1, accuracy=0.7), (8, 200)),
        )
        first = float(scores[0].mean()) + mean_lower_bound((scores[1:] - scores[0]).ravel(), 0.002)
        nearer.append(betting.floor(scores, 0.002) - first)
    assert numpy.mean(nearer) > 0.004


@pytest.mark.parametrize(
    "scores", [[[1.0, 0.0]], [1.0, 0.0], [[], []], [[1.0], [1.5]], [[1.0], [math.nan]]]
)
def test_passes_that_make_no_floor_are_refused(scores: list[Any]) -> None:
    with pytest.raises(ServeEvalError) as caught:
        betting.floor(scores, 0.01)
    assert caught.value.hint
