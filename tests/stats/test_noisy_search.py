"""The posterior of every suspect, by hand and by properties, and the choice of the next test."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.noisy_search import (
    ErrorRates,
    Posterior,
    SimulatedSearch,
    space_of_options,
    space_of_steps,
    start_chances,
)

RATES = ErrorRates(alpha=0.02, beta=0.05)
SPACES = [space_of_options(n) for n in (1, 2, 3, 4)] + [space_of_steps(n) for n in (1, 5)]


def _share(posterior, kind, *members):
    suspects = posterior.space.suspects
    place = next(i for i, one in enumerate(suspects) if (one.kind, one.members) == (kind, members))
    return float(posterior.probabilities[place])


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        # Two options, tested as (configuration, worse). The priors 20, 6, 1, 25, 25, 14 and 8 are
        # those of nothing, outside, no rule, either single option, the pair and "either alone".
        (
            [(3, True)],
            [20 * 0.02, 6 * 0.95, 1 * 0.95, 25 * 0.95, 25 * 0.95, 14 * 0.95, 8 * 0.95],
        ),
        (
            [(3, False)],
            [20 * 0.98, 6 * 0.05, 1 * 0.05, 25 * 0.05, 25 * 0.05, 14 * 0.05, 8 * 0.05],
        ),
        (
            [(3, True), (1, True)],
            [
                20 * 0.02**2,
                6 * 0.95**2,
                1 * 0.95 * 0.5,
                25 * 0.95**2,
                25 * 0.95 * 0.02,
                14 * 0.95 * 0.02,
                8 * 0.95**2,
            ],
        ),
        (
            [(3, True), (1, False), (2, False)],
            [
                20 * 0.02 * 0.98**2,
                6 * 0.95 * 0.05**2,
                1 * 0.95 * 0.25,
                25 * 0.95 * 0.05 * 0.98,
                25 * 0.95 * 0.98 * 0.05,
                14 * 0.95 * 0.98**2,
                8 * 0.95 * 0.05**2,
            ],
        ),
    ],
)
def test_the_posterior_is_that_of_bayes(results, expected):
    posterior = Posterior(space_of_options(2), RATES)
    for configuration, worse in results:
        posterior.update(configuration, worse=worse)
    known = [
        ("none",),
        ("outside",),
        ("other",),
        ("together", 0),
        ("together", 1),
        ("together", 0, 1),
        ("either", 0, 1),
    ]
    found = [_share(posterior, str(kind), *members) for kind, *members in known]
    assert found == pytest.approx([one / sum(expected) for one in expected])


def test_steps_fail_from_one_on():
    posterior = Posterior(space_of_steps(4), RATES)
    for configuration, worse in ((4, True), (2, False)):
        posterior.update(configuration, worse=worse)
    ratio = _share(posterior, "from", 3) / _share(posterior, "from", 2)
    assert ratio == pytest.approx(0.98 / 0.05)
    assert _share(posterior, "from", 3) == pytest.approx(_share(posterior, "from", 4))


@settings(max_examples=40)
@given(st.data())
def test_the_posterior_is_normal_and_moves_with_the_evidence(data):
    """The odds of two suspects move by the error rates alone, toward the one that predicts more."""
    space = data.draw(st.sampled_from(SPACES))
    posterior = Posterior(space, RATES)
    steps = st.tuples(st.sampled_from(space.configurations), st.booleans())
    for configuration, worse in data.draw(st.lists(steps, max_size=12)):
        before = posterior.probabilities
        after = posterior.after(configuration, worse=worse)
        assert list(posterior.probabilities) == list(before)
        posterior.update(configuration, worse=worse)
        shares = posterior.probabilities
        assert list(after.probabilities) == list(shares)
        assert math.isclose(shares.sum(), 1.0)
        assert (shares >= 0.0).all()
        column = space.fails[:, space.places[configuration]]
        failing, sound = (
            next((i for i, fails in enumerate(column) if fails == known), None)
            for known in (1.0, 0.0)
        )
        if failing is None or sound is None or min(before[failing], before[sound]) < 1e-200:
            continue
        factor = (shares[failing] / shares[sound]) / (before[failing] / before[sound])
        expected = (1 - RATES.beta) / RATES.alpha if worse else RATES.beta / (1 - RATES.alpha)
        assert factor == pytest.approx(expected)


@pytest.mark.parametrize("space", SPACES)
def test_information_is_what_a_result_tells_about_the_suspects(space):
    """It is the mutual information of the suspect and the result, summed here term by term."""
    posterior = Posterior(space, RATES)
    posterior.update(space.bad, worse=True)
    bits = posterior.information()
    shares = posterior.probabilities
    for place, configuration in enumerate(space.configurations):
        worse = [
            0.5 if fails == 0.5 else 1 - RATES.beta if fails else RATES.alpha
            for fails in space.fails[:, place]
        ]
        each = [worse, [1 - one for one in worse]]
        mixed = [sum(p * q for p, q in zip(shares, row, strict=True)) for row in each]
        expected = sum(
            p * q * math.log2(q / of_all)
            for row, of_all in zip(each, mixed, strict=True)
            for p, q in zip(shares, row, strict=True)
        )
        assert bits[place] == pytest.approx(expected, abs=1e-12), configuration
    chosen = posterior.choose(tested=(), chances=[1.0] * len(bits))
    assert chosen == space.configurations[int(bits.round(12).argmax())]


def test_what_was_tested_or_hardly_starts_is_not_chosen_and_a_running_server_is_preferred():
    space = space_of_steps(8)
    posterior = Posterior(space, RATES)
    posterior.update(8, worse=True)
    sure = [1.0] * 9
    assert posterior.choose(tested=[8], chances=sure) == 4
    assert posterior.choose(tested=[8, 4], chances=sure) in (3, 5)
    assert posterior.choose(tested=[8], chances=sure, running=[5]) == 5
    assert posterior.choose(tested=[8], chances=sure, running=[7]) == 4
    assert posterior.choose(tested=range(9), chances=sure) is None
    dead = start_chances(space, started=[0, 8], failed=[4])
    assert posterior.choose(tested=[8, 4], chances=dead) in (2, 6)


def test_a_combination_that_cannot_start_is_avoided_until_it_has_started():
    space = space_of_options(3)
    chances = dict(zip(space.configurations, start_chances(space, [0, 7], [1]), strict=True))
    # Option 0 without 1, or without 2, may be what cannot start.
    assert chances[1] == pytest.approx(0.1)
    assert chances[3] == chances[5] == pytest.approx(0.55)
    assert chances[2] == chances[6] == chances[0] == chances[7] == 1.0
    chances = dict(zip(space.configurations, start_chances(space, [0, 7, 3], [1]), strict=True))
    assert chances[3] == 1.0
    assert chances[5] == pytest.approx(0.1)


@pytest.mark.parametrize("space", [space_of_options(6), space_of_steps(15)])
def test_searches_end_with_the_truth_as_often_as_their_posterior_says(space):
    search = SimulatedSearch(space, ErrorRates(alpha=0.01, beta=0.01), 0.95)
    cost = search.measure(seed=1)
    assert cost.found >= 0.93
    assert 3.0 < cost.mean < 8.0
    assert cost.mean <= cost.most <= 14
    assert search.choose(()) == space.bad


def test_a_search_of_many_options_keeps_small_tables():
    space = space_of_options(20)
    assert space.bad in space.places
    assert 0 in space.places
    assert space.fails.size < 2_000_000
    assert {2: 190, 1: 20, 20: 1}.items() <= {
        size: sum(len(one.members) == size for one in space.suspects if one.kind == "together")
        for size in (1, 2, 20)
    }.items()


def test_rates_must_be_below_one_half():
    with pytest.raises(ServeEvalError, match="alpha"):
        ErrorRates(alpha=0.5, beta=0.1)


@pytest.mark.parametrize("count", [7, 12])
def test_single_options_and_those_up_to_each_can_be_tested_among_many(count):
    configurations, full = set(space_of_options(count).configurations), (1 << count) - 1
    for useful in ({1 << i for i in range(count)}, {(1 << i) - 1 for i in range(count)}):
        assert useful <= configurations
        assert {full ^ one for one in useful} <= configurations
