"""Test sequential non-inferiority: bets are fair, errors stay within alpha, and it stops."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import EarlyPaired, MarginWealth
from serve_eval.stats.early_stop import Wealth
from serve_eval.stats.multiplicity import acceptance_region
from tests.stats.simulation import altered, endpoints, run

VALUES = st.lists(st.floats(0.0, 1.0), max_size=40)


@given(VALUES, st.floats(0.01, 0.99), st.floats(0.0, 0.4), st.floats(0.0, 1.0))
def test_no_bet_grows_on_average_under_its_hypothesis(
    earlier: list[float], null: float, gap: float, spread: float
) -> None:
    """Draw one of two values whose mean is `null`.

    Stakes depend only on earlier values.
    """
    low, high = null * (1.0 - spread), null + (1.0 - null) * spread
    if high - low < 1e-6:
        return
    chance = (null - low) / (high - low)

    def wealth(*more: float) -> float:
        bet = MarginWealth(null, gap)
        return [1.0, *(bet.bet(value) for value in (*earlier, *more))][-1]

    assert chance * wealth(high) + (1.0 - chance) * wealth(low) <= wealth() * (1.0 + 1e-9)


def test_the_wealth_is_half_that_of_fixed_stakes_and_half_that_of_a_stake_that_follows_the_variance() -> (  # noqa: E501
    None
):
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


def test_a_stake_that_lost_more_than_a_float_can_tell_leaves_half_of_the_fixed_ones() -> None:
    bet, fixed = MarginWealth(0.5, 0.5), Wealth(0.5, None, 0.0, 1.0)
    for _ in range(1500):
        bet.bet(0.0)
        fixed.bet(0.0)
    assert bet.log == pytest.approx(fixed.log - math.log(2.0))


def test_the_evidence_needed_is_one_over_alpha_and_that_few_are_missing_one_over_eps() -> None:
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
    assert wanted is not None
    assert 0 <= wanted - test.looked_at <= 1  # the rest of the weight helps slightly


@pytest.mark.parametrize(("drop", "decision"), [(0.0, Decision.PASS), (0.1, Decision.FAIL)])
def test_clear_cases_stop(drop: float, decision: Decision) -> None:
    random_ = numpy.random.default_rng(3)
    before = endpoints(random_, 4096, flip_rate=0.011)
    after = altered(random_, before, to_wrong=drop)
    test = EarlyPaired(4096, 0.02, alpha=0.025)
    assert test.update((run(random_, after) - run(random_, before)).tolist()) is decision
    assert test.looked_at < 1200


def test_at_a_drop_of_the_margin_either_decision_comes_in_alpha_at_most() -> None:
    """Half of the evidence would exceed it: alpha is large here, so that both show."""
    alpha, runs, n, margin = 0.3, 500, 400, 0.05
    random_ = numpy.random.default_rng(11)
    before = endpoints(random_, (runs, n), flip_rate=0.034)
    differences = run(random_, altered(random_, before, to_wrong=margin)) - run(random_, before)
    tests = (EarlyPaired(n, margin, alpha=alpha, max_missing=1.0) for _ in range(runs))
    found = Counter(test.update(row) for test, row in zip(tests, differences.tolist(), strict=True))
    for wrong in (Decision.PASS, Decision.FAIL):
        assert 0.3 * alpha * runs < found[wrong] <= acceptance_region(runs, alpha)[1]


def test_points_stop_where_proportions_do() -> None:
    values = random.Random(4).choices([-1.0, 0.0, 1.0], [0.01, 0.98, 0.01], k=4000)
    one, other = (
        EarlyPaired(4000, 0.02, alpha=0.025),
        EarlyPaired(4000, 2.0, alpha=0.025, span=100.0),
    )
    one.update(values)
    other.update(100.0 * value for value in values)
    assert one.decision is Decision.PASS
    assert (one.decision, one.looked_at) == (other.decision, other.looked_at)


def test_a_missing_answer_makes_both_bets_poorer() -> None:
    test = EarlyPaired(1000, 0.02, alpha=0.025)
    test.update([0.0] * 30)
    before = test.log_wealth_pass, test.log_wealth_fail, test.log_wealth_answered
    test.update_missing(-1.0, 1.0)
    assert all(now < then for now, then in zip(_logs(test), before, strict=True))


def _logs(test: EarlyPaired) -> tuple[float, float, float]:
    return test.log_wealth_pass, test.log_wealth_fail, test.log_wealth_answered


def test_a_margin_beyond_the_range_is_excluded_by_itself_and_none_at_all_is_bet_on() -> None:
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
def test_a_plan_that_cannot_stop_is_refused(arguments: dict[str, float], message: str) -> None:
    usual = {"n": 10, "margin": 0.1, "alpha": 0.025, "span": 1.0, "eps": 0.01} | arguments
    with pytest.raises(ServeEvalError, match=message):
        EarlyPaired(**usual)  # type: ignore[arg-type]
