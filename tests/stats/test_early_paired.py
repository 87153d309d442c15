"""Test sequential non-inferiority by pairs and by whole groups."""

import math
import random
from collections import Counter
from itertools import pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import early_stop
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import AnsweredGroups, EarlyGroups, EarlyPaired, MarginWealth
from serve_eval.stats.early_stop import Wealth
from serve_eval.stats.multiplicity import acceptance_region
from tests.stats.simulation import altered, endpoints, run

VALUES = st.lists(st.floats(0.0, 1.0), max_size=40)


@given(VALUES, st.floats(0.01, 0.99), st.floats(0.0, 0.4), st.floats(0.0, 1.0))
def test_no_bet_grows_on_average_under_its_hypothesis(earlier, null, gap, spread):
    """Draw one of two values whose mean is `null`.

    Stakes depend only on earlier values.
    """
    low, high = null * (1.0 - spread), null + (1.0 - null) * spread
    if high - low < 1e-6:
        return
    chance = (null - low) / (high - low)

    def wealth(*more):
        bet = MarginWealth(null, gap)
        return [1.0, *(bet.bet(value) for value in (*earlier, *more))][-1]

    assert chance * wealth(high) + (1.0 - chance) * wealth(low) <= wealth() * (1.0 + 1e-9)


def test_the_wealth_is_half_that_of_fixed_stakes_and_half_that_of_a_stake_that_follows_the_variance():  # noqa: E501
    null, gap, values = (
        0.495,
        0.005,
        random.Random(1).choices([0.0, 0.5, 1.0], [0.02, 0.96, 0.02], k=200),
    )
    bet, fixed, following = MarginWealth(null, gap), Wealth(null, None, 0.0, 1.0), 1.0
    for t, value in enumerate(values):
        variance = (20 * 0.05 + sum((x - 0.5) ** 2 for x in values[:t])) / (20 + t)
        following *= 1.0 + min(gap / (variance + gap * gap), 0.97 / null) * (value - null)
        assert bet.bet(value) == pytest.approx((fixed.bet(value) + following) / 2.0)
    assert bet.log == pytest.approx(math.log((math.exp(fixed.log) + following) / 2.0))


def test_a_stake_that_lost_more_than_a_float_can_tell_leaves_half_of_the_fixed_ones():
    bet, fixed = MarginWealth(0.5, 0.5), Wealth(0.5, None, 0.0, 1.0)
    for _ in range(1500):
        bet.bet(0.0)
        fixed.bet(0.0)
    assert bet.log == pytest.approx(fixed.log - math.log(2.0))


def test_the_evidence_needed_is_one_over_alpha_and_that_few_are_missing_one_over_eps():
    """Compare with the first value at which both hold, found independently."""
    n, margin, alpha = 3000, 0.02, 0.025
    random_ = random.Random(5)
    values = random_.choices([-1.0, 0.0, 1.0], [0.01, 0.98, 0.01], k=n)
    bet, wanted = MarginWealth(0.5 - margin / 2, margin / 2), None
    for t, value in enumerate(values, 1):
        none_missing = 0.5 * math.exp(
            sum(math.log((n - i) / (n - 61 - i)) for i in range(t))
        )  # of 61 that would be too many, none among t
        if bet.bet((value + 1) / 2) >= 1 / alpha and none_missing >= 100:
            wanted = t
            break
    test = EarlyPaired(n, margin, alpha=alpha)
    assert test.update(values) is Decision.PASS
    assert 0 <= wanted - test.looked_at <= 1  # the rest of the weight helps slightly


@pytest.mark.parametrize(("drop", "decision"), [(0.0, Decision.PASS), (0.1, Decision.FAIL)])
def test_clear_cases_stop(drop, decision):
    random_ = numpy.random.default_rng(3)
    before = endpoints(random_, 4096, flip_rate=0.011)
    after = altered(random_, before, to_wrong=drop)
    test = EarlyPaired(4096, 0.02, alpha=0.025)
    assert test.update((run(random_, after) - run(random_, before)).tolist()) is decision
    assert test.looked_at < 1200


def test_at_a_drop_of_the_margin_either_decision_comes_in_alpha_at_most():
    """Half of the evidence would exceed it: alpha is large here, so that both show."""
    alpha, runs, n, margin = 0.3, 500, 400, 0.05
    random_ = numpy.random.default_rng(11)
    before = endpoints(random_, (runs, n), flip_rate=0.034)
    differences = run(random_, altered(random_, before, to_wrong=margin)) - run(random_, before)
    tests = (EarlyPaired(n, margin, alpha=alpha, max_missing=1.0) for _ in range(runs))
    found = Counter(test.update(row) for test, row in zip(tests, differences.tolist(), strict=True))
    for wrong in (Decision.PASS, Decision.FAIL):
        assert 0.3 * alpha * runs < found[wrong] <= acceptance_region(runs, alpha)[1]


def test_points_stop_where_proportions_do():
    values = random.Random(4).choices([-1.0, 0.0, 1.0], [0.01, 0.98, 0.01], k=4000)
    one, other = (
        EarlyPaired(4000, 0.02, alpha=0.025),
        EarlyPaired(4000, 2.0, alpha=0.025, span=100.0),
    )
    one.update(values)
    other.update(100.0 * value for value in values)
    assert one.decision is Decision.PASS
    assert (one.decision, one.looked_at) == (other.decision, other.looked_at)


def test_a_missing_answer_makes_both_bets_poorer():
    test = EarlyPaired(1000, 0.02, alpha=0.025)
    test.update([0.0] * 30)
    before = test.log_wealth_pass, test.log_wealth_fail, test.log_wealth_answered
    test.update_missing(-1.0, 1.0)
    assert all(now < then for now, then in zip(_logs(test), before, strict=True))


def _logs(test):
    return test.log_wealth_pass, test.log_wealth_fail, test.log_wealth_answered


def test_a_margin_beyond_the_range_is_excluded_by_itself_and_none_at_all_is_bet_on():
    assert EarlyPaired(100, 1.5, alpha=0.025, max_missing=1.0).update([-1.0]) is Decision.PASS
    assert EarlyPaired(1000, 0.0, alpha=0.025, max_missing=1.0).update([-1.0] * 30) is Decision.FAIL
    lost = EarlyPaired(1000, 0.5, alpha=0.025, max_missing=1.0)
    assert lost.update([-1.0] * 30) is Decision.FAIL
    assert lost.log_wealth_pass < 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "number of planned samples must be 1 or more"),
        ({"alpha": 0.0}, "alpha must lie strictly between 0 and 1"),
        ({"eps": 1.0}, "eps must lie strictly between 0 and 1"),
        ({"margin": -0.1}, "margin must be a finite number"),
        ({"span": math.inf}, "finite range"),
    ],
)
def test_a_plan_that_cannot_stop_is_refused(arguments, message):
    usual = {"n": 10, "margin": 0.1, "alpha": 0.025, "span": 1.0, "eps": 0.01} | arguments
    with pytest.raises(ServeEvalError, match=message):
        EarlyPaired(**usual)


ALPHA = 0.025


def _add(test, values):
    return test.update_unit([(one, one) for one in values])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.floats(0.01, 0.9))
def test_groups_that_lose_the_margin_by_the_prompt_move_no_bet(sizes, margin):
    """Whatever their sizes: the hypothesis is about the mean of the prompts."""
    test = EarlyGroups(sizes, margin, alpha=ALPHA, max_missing=1.0)
    for size in sizes:
        _add(test, [-margin] * size)
    assert (test.log_wealth_pass, test.log_wealth_fail) == (
        pytest.approx(0.0, abs=1e-9),
        pytest.approx(0.0, abs=1e-9),
    )


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=8), st.integers(1, 4))
def test_a_group_of_prompts_that_move_together_is_one_value(values, size):
    """Groups of equal sizes whose prompts all do the same tell as much as one prompt of each."""
    n, margin = len(values), 0.1
    groups = EarlyGroups([size] * n, margin, alpha=ALPHA, max_missing=1.0)
    singles = EarlyPaired(n, margin, alpha=ALPHA, max_missing=1.0, prior_weight=5)
    for value in values:
        _add(groups, [value] * size)
        singles.update([value])
    assert groups.log_wealth_pass == pytest.approx(singles.log_wealth_pass, abs=1e-9)
    assert groups.log_wealth_fail == pytest.approx(singles.log_wealth_fail, abs=1e-9)
    assert groups.looked_at == size * singles.looked_at or groups.decision is not None


@pytest.mark.parametrize("unequal", [False, True])
def test_at_a_drop_of_the_margin_either_decision_comes_in_alpha_at_most_early_groups(
    unequal,
):
    """Whole groups are lost. Alpha is large here, so that half of the evidence would show.

    Bets on the single prompts of the same runs break the level several times over.
    """
    alpha, margin, runs, random = 0.1, 0.1, 250, numpy.random.default_rng(12)
    found = {"groups": Counter(), "prompts": Counter()}
    for _ in range(runs):
        sizes = (1 + random.integers(0, 20, 100) if unequal else numpy.full(100, 10)).tolist()
        lost = random.random(len(sizes)) < margin
        groups = EarlyGroups(sizes, margin, alpha=alpha, max_missing=1.0)
        for size, one in zip(sizes, lost, strict=True):
            _add(groups, [-float(one)] * size)
        prompts = EarlyPaired(sum(sizes), margin, alpha=alpha, max_missing=1.0)
        prompts.update(random.permutation(-numpy.repeat(lost, sizes).astype(float)).tolist())
        found["groups"][groups.decision] += 1
        found["prompts"][prompts.decision] += 1
    for wrong in (Decision.PASS, Decision.FAIL):
        assert found["groups"][wrong] <= acceptance_region(runs, alpha)[1]
        assert found["prompts"][wrong] > 1.8 * alpha * runs


@pytest.mark.parametrize(("drop", "decision"), [(0.0, Decision.PASS), (0.3, Decision.FAIL)])
def test_clear_cases_stop_early_groups(drop, decision):
    random = numpy.random.default_rng(3)
    test = EarlyGroups([5] * 800, 0.05, alpha=ALPHA)
    while test.decision is None:
        noise = random.random() < 0.02
        lost = random.random() < drop
        _add(test, [float(noise) - float(lost)] * 5)
    assert test.decision is decision
    assert test.looked_at < 1600


def test_a_missing_answer_makes_both_bets_poorer_and_a_whole_missing_group_more_so():
    logs = []
    for missing in (0, 1, 5):
        test = EarlyGroups([5] * 200, 0.02, alpha=ALPHA)
        for _ in range(30):
            _add(test, [0.0] * 5)
        test.update_unit([(-1.0, 1.0)] * missing + [(0.0, 0.0)] * (5 - missing), missing)
        assert (test.missing, test.looked_at) == (missing, 155)
        logs.append((test.log_wealth_pass, test.log_wealth_fail, test.log_wealth_answered))
    for before, after in pairwise(logs):
        assert all(one > other for one, other in zip(before, after, strict=True))


def test_groups_that_go_missing_whole_are_noticed_with_the_probability_that_eps_leaves():
    """One more answer is missing than allowed, all of them in two groups of 100.

    The bet on single prompts takes the first of its groups for two hundred prompts without a gap.
    """
    eps, runs, random = 0.05, 200, numpy.random.default_rng(5)
    size, groups, most = 20, 100, early_stop.most_missing(2000, 0.0195)
    found = Counter()
    for _ in range(runs):
        gone = random.choice(groups, 2, replace=False)
        by_groups = AnsweredGroups([size] * groups, most)
        highest = {"groups": -math.inf, "prompts": -math.inf}
        for place in range(groups):
            by_groups.add(size, size * (place in gone))
            so_far = size * int((gone <= place).sum())
            highest["groups"] = max(highest["groups"], by_groups.log)
            single = early_stop.log_wealth(size * groups, most, size * (place + 1), so_far)
            highest["prompts"] = max(highest["prompts"], single)
        for how, log in highest.items():
            found[how] += log >= -math.log(eps)
    assert 2 * size == most + 1
    assert found["groups"] <= acceptance_region(runs, eps)[1]
    assert found["prompts"] > 0.8 * runs


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=2, max_size=30),
    st.floats(0.0, 0.3),
)
def test_the_evidence_is_certain_at_the_end(groups, share):
    sizes = [size for size, _ in groups]
    most = early_stop.most_missing(sum(sizes), share)
    bet = AnsweredGroups(sizes, most)
    for size, gone in groups:
        bet.add(size, size * gone)
    missing = sum(size for size, gone in groups if gone)
    assert bet.log == (math.inf if missing <= most else -math.inf)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(-2.0, 0.0)], "not a range"),
        ([(0.5, -0.5)], "not a range"),
        ([(0.0, 0.0)] * 11, "more values than the 10 planned"),
    ],
)
def test_what_is_no_group_of_the_plan_is_refused(ranges, message):
    test = EarlyGroups([5, 5], 0.1, alpha=ALPHA)
    with pytest.raises(ServeEvalError, match=message):
        test.update_unit(ranges)
