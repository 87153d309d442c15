"""Test sequential non-inferiority by whole groups: its bets are fair whatever a group does."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import early_stop
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import AnsweredGroups, EarlyGroups, EarlyPaired
from serve_eval.stats.multiplicity import acceptance_region

ALPHA = 0.025


def _add(test: EarlyGroups, values: list[float]) -> Decision | None:
    return test.update_unit([(one, one) for one in values])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.floats(0.01, 0.9))
def test_groups_that_lose_the_margin_by_the_prompt_move_no_bet(
    sizes: list[int], margin: float
) -> None:
    """Whatever their sizes: the hypothesis is about the mean of the prompts."""
    test = EarlyGroups(sizes, margin, alpha=ALPHA, max_missing=1.0)
    for size in sizes:
        _add(test, [-margin] * size)
    assert (test.log_wealth_pass, test.log_wealth_fail) == (
        pytest.approx(0.0, abs=1e-9),
        pytest.approx(0.0, abs=1e-9),
    )


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=8), st.integers(1, 4))
def test_a_group_of_prompts_that_move_together_is_one_value(values: list[float], size: int) -> None:
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
def test_at_a_drop_of_the_margin_either_decision_comes_in_alpha_at_most(unequal: bool) -> None:
    """Whole groups are lost. Alpha is large here, so that half of the evidence would show.

    Bets on the single prompts of the same runs break the level several times over.
    """
    alpha, margin, runs, random = 0.1, 0.1, 250, numpy.random.default_rng(12)
    found: dict[str, Counter[Decision | None]] = {"groups": Counter(), "prompts": Counter()}
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
def test_clear_cases_stop(drop: float, decision: Decision) -> None:
    random = numpy.random.default_rng(3)
    test = EarlyGroups([5] * 800, 0.05, alpha=ALPHA)
    while test.decision is None:
        noise = random.random() < 0.02
        lost = random.random() < drop
        _add(test, [float(noise) - float(lost)] * 5)
    assert test.decision is decision
    assert test.looked_at < 1600


def test_a_missing_answer_makes_both_bets_poorer_and_a_whole_missing_group_more_so() -> None:
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


def test_groups_that_go_missing_whole_are_noticed_with_the_probability_that_eps_leaves() -> None:
    """One more answer is missing than allowed, all of them in two groups of 100.

    The bet on single prompts takes the first of its groups for two hundred prompts without a gap.
    """
    eps, runs, random = 0.05, 200, numpy.random.default_rng(5)
    size, groups, most = 20, 100, early_stop.most_missing(2000, 0.0195)
    found = Counter[str]()
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
def test_the_evidence_is_certain_at_the_end(groups: list[tuple[int, bool]], share: float) -> None:
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
def test_what_is_no_group_of_the_plan_is_refused(
    ranges: list[tuple[float, float]], message: str
) -> None:
    test = EarlyGroups([5, 5], 0.1, alpha=ALPHA)
    with pytest.raises(ServeEvalError, match=message):
        test.update_unit(ranges)
