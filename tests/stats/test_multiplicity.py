"""Test corrections for several tests, p-values that combine them, and noisy searches."""

import math
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.multiplicity import benjamini_hochberg, holm, mean_z_p
from serve_eval.stats.noisy_search import (
    ErrorRates,
    Posterior,
    SimulatedSearch,
    space_of_options,
    space_of_steps,
    start_chances,
)
from serve_eval.stats.sign_tests import mcnemar, min_p


def test_a_small_family_equals_statsmodels():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], abs=1e-9)
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.02, 0.04, 0.04, 0.02], abs=1e-9
    )


@pytest.mark.parametrize(("kind", "adjust"), [("holm", holm), ("bh", benjamini_hochberg)])
def test_the_shared_vectors_hold_to_their_tolerance(kind, adjust, vectors):
    for vector in vectors(kind):
        adjusted = adjust(vector["inputs"]["p"])
        assert adjusted == pytest.approx(vector["expected"]["adjusted"], abs=vector["tolerance"]), (
            vector["id"]
        )


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_one_test_or_none_needs_no_correction(adjust):
    assert adjust([]) == []
    assert adjust([0.3]) == [0.3]


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=50)


@given(P_VALUES)
def test_adjusted_values_keep_the_order_and_holm_is_the_stricter(p):
    strict, lenient = holm(p), benjamini_hochberg(p)
    order = sorted(range(len(p)), key=p.__getitem__)
    for earlier, later in pairwise(order):
        assert strict[earlier] <= strict[later]
        assert lenient[earlier] <= lenient[later]
    for raw, q, adjusted in zip(p, lenient, strict, strict=True):
        assert raw <= q * (1 + 1e-12) + 1e-300
        assert q <= adjusted * (1 + 1e-12) + 1e-300
        assert adjusted <= 1.0


@given(P_VALUES, st.data())
def test_a_smaller_p_never_raises_an_adjusted_value(p, data):
    place = data.draw(st.integers(0, len(p) - 1))
    smaller = [value / 2 if i == place else value for i, value in enumerate(p)]
    for adjust in (holm, benjamini_hochberg):
        assert all(
            a <= b * (1 + 1e-12) + 1e-300 for a, b in zip(adjust(smaller), adjust(p), strict=True)
        )


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(adjust, value):
    with pytest.raises(ServeEvalError, match="position 1 is") as caught:
        adjust([0.5, value])
    assert "leave out" in caught.value.hint


SIGNS = st.tuples(st.integers(-1, 1), st.integers(-1, 1))
FEW = st.lists(SIGNS, min_size=1, max_size=7).map(Counter)


def _mid(positive, n):
    """Return McNemar's mid-p from whole numbers."""
    if n == 0:
        return Fraction(1)
    more = sum(math.comb(n, k) for k in range(positive + 1, n + 1))
    return Fraction(2 * more + math.comb(n, positive), 2 ** (n + 1))


def _least(signs):
    """Return the smaller mid-p of the two measures."""
    each = [[one[which] for one in signs if one[which]] for which in (0, 1)]
    return min(_mid(sum(s > 0 for s in row), len(row)) for row in each)


def _flipped(counts):
    """Return all joint flips of the signs."""
    signs = [one for one in counts.elements() if one != (0, 0)]
    for flips in product((1, -1), repeat=len(signs)):
        yield [(flip * a, flip * b) for flip, (a, b) in zip(flips, signs, strict=True)]


@given(FEW)
def test_it_is_the_share_of_all_joint_flips(counts):
    observed = _least(list(counts.elements()))
    all_flips = [_least(signs) for signs in _flipped(counts)]
    lower, equal = (sum(p < observed for p in all_flips), sum(p == observed for p in all_flips))
    found = min_p(counts)
    if counts.total() == counts[(0, 0)]:
        assert found.p_mid == found.p_exact == 1.0
        return
    assert found.p_exact == pytest.approx(float(Fraction(lower + equal, len(all_flips))), rel=1e-9)
    assert found.p_mid == pytest.approx(
        float(Fraction(2 * lower + equal, 2 * len(all_flips))), rel=1e-9
    )


@given(FEW, st.sampled_from([0.01, 0.05, 0.2, 0.5]))
def test_under_exchange_the_exact_p_holds_its_level_and_the_mid_p_is_half_on_average(counts, alpha):
    if counts.total() == counts[(0, 0)]:
        return
    told = [min_p(Counter(signs)) for signs in _flipped(counts)]
    assert sum(one.p_exact <= alpha * (1 + 1e-9) for one in told) <= alpha * len(told)
    assert sum(one.p_mid for one in told) / len(told) == pytest.approx(0.5)


COUNT = st.integers(0, 400)


@given(COUNT, COUNT, st.integers(0, 400), st.sampled_from([(1, 0), (0, 1), (1, 1)]))
def test_one_measure_alone_and_two_that_agree_are_mcnemars_test(plus, minus, none, by):
    found = min_p({by: plus, (-by[0], -by[1]): minus, (0, 0): none})
    assert found.p_mid == pytest.approx(mcnemar(plus, minus).p_mid, rel=1e-9)
    assert found.p_exact == pytest.approx(mcnemar(plus, minus).p_exact, rel=1e-9)


@given(st.dictionaries(SIGNS, st.integers(0, 60)))
def test_it_lies_between_the_smaller_p_and_twice_that(counts):
    found = min_p(counts)
    assert min(found.each) * (1 - 1e-9) <= found.p_exact
    # Bonferroni bound of exact p-values, which are at most twice the mid-p.
    assert found.p_exact <= min(1.0, 4 * min(found.each)) * (1 + 1e-9)
    assert found.p_mid <= found.p_exact <= 2 * found.p_mid * (1 + 1e-9)


@given(st.dictionaries(SIGNS, st.integers(0, 60)))
def test_the_order_of_the_measures_does_not_matter(counts):
    one, other = min_p(counts), min_p({(b, a): n for (a, b), n in counts.items()})
    assert one.p_mid == pytest.approx(other.p_mid, rel=1e-9)
    assert one.each == other.each[::-1]


@pytest.mark.parametrize(
    ("counts", "p"),
    [
        # bf16 and int4 of a served model, 100 prompts: 6 texts changed, none of the second ones.
        ({(0, 1): 6}, 0.0078125),
        ({(0, 1): 3, (1, 1): 3}, 0.0078125),
        # The embedded model as bf16 and int4, 100 word problems: 14 texts changed, and 13 of their
        # scores.
        ({(1, 1): 13, (0, 1): 1, (0, 0): 86}, 2.0**-15),
        # Continuous scores under noise, 200 prompts: int8 is farther away in 134, int4 in 193.
        ({(1, 0): 134, (-1, 0): 66}, 6.425945581938067e-07),
        ({(1, 0): 193, (-1, 0): 7}, 7.635380881512203e-49),
        # Four prompts whose signs are opposite: one measure has at least three positive signs in
        # 10 of 16 flips, and all four in 2.
        ({(1, -1): 3, (-1, 1): 1}, 0.375),
        ({}, 1.0),
        ({(0, 0): 100}, 1.0),
    ],
)
def test_cases_that_were_met(counts, p):
    assert min_p(counts).p_mid == pytest.approx(p, rel=1e-9)


def test_two_measures_that_know_nothing_of_each_other_cost_twice_the_p():
    found = min_p({(1, 0): 193, (-1, 0): 7, (0, 1): 193, (0, -1): 7})
    assert found.p_mid == pytest.approx(2 * 7.635380881512203e-49, rel=1e-6)


@pytest.mark.parametrize("n", [20, 50, 500])
def test_equal_p_values_of_different_numbers_of_signs_are_ties(n):
    """Half of the signs positive is a mid-p of 1/2 for any number of signs."""
    at_most_half = Fraction(sum(math.comb(n, k) for k in range(n // 2 + 1)), 2**n)
    below_half = at_most_half - Fraction(math.comb(n, n // 2), 2**n)
    found = min_p({(1, 0): 1, (-1, 0): 1, (0, 1): n // 2, (0, -1): n // 2})
    assert found.p_exact == pytest.approx(float(1 - below_half / 4), rel=1e-9)
    assert found.p_mid == pytest.approx(
        float(1 - (below_half / 4 + at_most_half * 3 / 4) / 2), rel=1e-9
    )


def test_more_prompts_than_fit_into_memory_at_once_give_the_same(
    monkeypatch,
):
    counts = {(1, 1): 40, (-1, -1): 31, (1, -1): 20, (-1, 1): 18, (0, 1): 9, (-1, 0): 4}
    whole = min_p(counts)
    monkeypatch.setattr("serve_eval.stats.sign_tests.CELLS", 100)
    assert min_p(counts).p_mid == pytest.approx(whole.p_mid, rel=1e-12)


@pytest.mark.parametrize(
    ("counts", "value"),
    [({(2, 0): 1}, "(2, 0)"), ({(0.5, 1): 3}, "(0.5, 1)"), ({(1, 1): -1}, "-1")],
)
def test_what_is_no_count_of_signs_is_refused(counts, value):
    with pytest.raises(ServeEvalError, match=re.escape(value)) as caught:
        min_p(counts)
    assert caught.value.hint


P = st.floats(0.0, 1.0)


@given(st.lists(P, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_it_lies_between_the_p_values_and_has_no_order(ps, random):
    found = mean_z_p(ps)
    assert min(ps) - 1e-12 <= found <= max(ps) + 1e-12
    assert found == pytest.approx(mean_z_p(random.sample(ps, len(ps))))


@pytest.mark.parametrize("p", [0.001, 0.04, 0.5, 0.9])
def test_equal_p_values_stay(p):
    assert mean_z_p([p, p, p]) == pytest.approx(p)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_it_holds_its_level_however_the_tests_depend(correlation):
    """4000 simulated triples: the share of p up to 0.05 is at most 0.05 but for chance."""
    from scipy.special import ndtr

    random = numpy.random.default_rng(5)
    shared = random.standard_normal((4000, 1))
    own = random.standard_normal((4000, 3))
    z = numpy.sqrt(correlation) * shared + numpy.sqrt(1 - correlation) * own
    share = numpy.mean([mean_z_p(list(map(float, row))) <= 0.05 for row in ndtr(z)])
    assert share <= 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


@pytest.mark.parametrize("wrong", [[], [1.1], [-0.1, 0.5]])
def test_what_is_no_p_is_refused(wrong):
    with pytest.raises(ServeEvalError, match="p-values between 0 and 1 are needed"):
        mean_z_p(wrong)


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


@pytest.mark.parametrize(("count", "largest"), [(8, 8), (16, 3), (17, 2)])
def test_sets_that_fail_only_together_are_the_smaller_the_more_options_there_are(count, largest):
    sizes = {len(one.members) for one in space_of_options(count).suspects if one.kind == "together"}
    assert sizes == {*range(1, largest + 1), count}
