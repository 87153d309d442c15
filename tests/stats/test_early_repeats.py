"""Test sequential comparisons with repeats, in rounds of all prompts."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import EarlyPaired
from serve_eval.stats.early_repeats import (
    ON_NONE_MISSING,
    AnsweredRounds,
    Blocks,
    BlockWealth,
    EarlyRepeats,
    ExpectedWealth,
    make_blocks,
    split_evenly,
)
from serve_eval.stats.early_stop import Wealth
from serve_eval.stats.multiplicity import acceptance_region

ALPHA = 0.025


def _alike(n: int, k: int, variance: float = 0.1) -> Blocks:
    """Return blocks of one round for a reference whose answers are all alike."""
    return Blocks(range(1, k + 1), [[0.0] * n] * k, variance)


def _add(test: EarlyRepeats, rows) -> Decision | None:
    """Add rounds of one answer per prompt until a decision."""
    for row in rows:
        for value in row:
            if test.update_unit([(value, value)]) is not None:
                return test.decision
    return None


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), max_size=4),
    st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3),
    st.floats(0.05, 0.95),
)
def test_no_block_grows_on_average_if_the_mean_of_its_prompts_is_the_null(
    earlier: list[list[float]], tilts: list[float], null: float
):
    """The prompts have different chances, each of 0 or 1, whose mean is `null`."""
    shift = sum(tilts) / len(tilts)
    room = min(null, 1.0 - null)
    chances = [null + 0.49 * room * (one - shift) for one in tilts]

    def wealth(*more: float) -> float:
        bet = BlockWealth(null, 0.05, 0.01)
        last = 1.0
        for row in [*earlier, more]:
            for value in row:
                last = bet.bet(value)
            if row:
                bet.end_block()
        return last

    mean = sum(
        math.prod(p if one else 1.0 - p for p, one in zip(chances, outcome, strict=True))
        * wealth(*map(float, outcome))
        for outcome in itertools.product((0, 1), repeat=3)
    )
    assert mean <= wealth() * (1.0 + 1e-9)


def test_the_stake_of_a_block_is_set_by_the_spread_of_all_values_before_it():
    null, gap, blocks = 0.45, 0.05, [[0.4, 0.6, 0.5, 0.9], [0.7, 0.3, 0.5, 0.5]] * 2
    bet, fixed = BlockWealth(null, gap, 0.1), Wealth(null, None, 0.0, 1.0)
    expected, own, squares = ExpectedWealth(null, gap, 0.1), 1.0, [0.1]
    for row in blocks:
        used = math.fsum(squares) / len(squares)
        squares = squares if len(squares) > 1 else []
        for value in row:
            own *= 1.0 + gap / (used + gap * gap) * (value - null)
            squares.append((value - 0.5) ** 2)
            parts = own, fixed.bet(value), expected.bet(value)
            assert math.isclose(bet.bet(value), sum(parts) / 3.0)
        bet.end_block()
        expected.end_block()


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("spread", ["few prompts lost for good", "all prompts a little worse"])
def test_at_a_drop_of_the_margin_a_pass_comes_in_alpha_at_most(spread: str, single: bool):
    """The questions are fixed."""
    alpha, margin, n, k, runs = 0.1, 0.1, 60, 8, 160
    random = numpy.random.default_rng(5)
    chances = numpy.where(numpy.arange(n) < 36, 1.0, numpy.linspace(0.0, 1.0, n))
    worse = chances.copy()
    if spread == "few prompts lost for good":
        worse[: round(margin * n)] = 0.0
    else:
        worse[:36] -= margin * n / 36
    found: Counter[Decision | None] = Counter()
    for _ in range(runs):
        order = random.permutation(n)
        after = (random.random((k, n)) < worse[order]).astype(float)
        before = (random.random((1 if single else k, n)) < chances[order]).astype(float)
        blocks = make_blocks(before.tolist(), k, 0.1)
        test = EarlyRepeats(n, k, margin, alpha=alpha, blocks=blocks, max_missing=1.0)
        found[_add(test, (after - before.mean(axis=0)).tolist())] += 1
    for wrong in (Decision.PASS, Decision.FAIL):
        assert found[wrong] <= acceptance_region(runs, alpha)[1]


@pytest.mark.parametrize(("drop", "decision"), [(0.0, Decision.PASS), (0.3, Decision.FAIL)])
@pytest.mark.parametrize("single", [False, True])
def test_clear_cases_stop_in_a_third(drop: float, decision: Decision, single: bool):
    random, n, k = numpy.random.default_rng(3), 200, 16
    lost = numpy.where(numpy.arange(n) % 10 < 10 * drop, -1.0, 0.0)
    noise = random.choice([-1.0, 0.0, 1.0], (k, n), p=[0.02, 0.96, 0.02])
    blocks = None if single else _alike(n, k)
    test = EarlyRepeats(n, k, 0.08, alpha=ALPHA, blocks=blocks)
    assert _add(test, numpy.clip(lost + noise, -1.0, 1.0).tolist()) is decision
    assert test.looked_at < n * k / 8


def test_prompts_that_are_lost_for_good_cost_a_block_no_more_than_the_first_time():
    """Three of 30 are lost, half of the margin; each block after the first says the same again."""
    n, k = 30, 64
    test = EarlyRepeats(n, k, 0.2, alpha=ALPHA, blocks=_alike(n, k), max_missing=1.0)
    assert _add(test, [[-1.0] * 3 + [0.0] * 27] * k) is Decision.PASS
    assert test.looked_at == 4 * n


def test_two_rounds_are_looked_at_as_a_run_without_repeats():
    values = numpy.random.default_rng(1).choice([-1.0, 0.0], 300, p=[0.3, 0.7]).tolist()
    one = EarlyRepeats(300, 2, 0.1, alpha=ALPHA, max_missing=1.0)
    other = EarlyPaired(300, 0.1, alpha=ALPHA, max_missing=1.0)
    _add(one, [values])
    other.update(values)
    assert other.decision is Decision.FAIL
    assert (one.decision, one.looked_at) == (other.decision, other.looked_at)


@pytest.mark.parametrize("single", [False, True])
def test_a_later_round_is_looked_at_only_at_its_end(single: bool):
    n, blocks = 200, None if single else _alike(200, 8)
    test = EarlyRepeats(n, 8, 0.1, alpha=ALPHA, blocks=blocks, max_missing=1.0)
    noise = [(-1.0) ** place for place in range(n)]
    _add(test, [noise, [-one for one in noise], *[[0.0] * n] * 6])
    assert test.decision is Decision.PASS
    assert test.looked_at in (range(2 * n, 8 * n, n) if blocks else (2 * n, 4 * n))


def test_each_answer_of_the_reference_counts_in_one_block():
    """A reference of four runs gives sixteen rounds four blocks, each as long as those before."""
    runs = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    found = make_blocks(runs, 16, 0.2)
    assert found.ends == [2, 4, 8, 16]
    means = numpy.mean(runs, axis=0)
    assert numpy.allclose(means - numpy.array(found.offsets), runs)
    assert found.variance == pytest.approx(0.2 * (1.0 / 2.0 + 1.0))
    assert make_blocks(runs, 2, 0.2).ends == [1, 2]
    assert make_blocks(runs[:1], 8, 0.2) is None


def test_a_drop_that_the_reference_shares_is_none():
    """Each block is as bad as its own answer of the reference, and no worse."""
    n, k = 100, 8
    before = numpy.random.default_rng(2).integers(0, 2, (k, n)).astype(float)
    blocks = make_blocks(before.tolist(), k, 0.25)
    test = EarlyRepeats(n, k, 0.1, alpha=ALPHA, blocks=blocks, max_missing=1.0)
    _add(test, (before - before.mean(axis=0)).tolist())
    assert test.decision is Decision.PASS
    assert test.looked_at <= 3 * n


def test_a_pass_that_later_answers_speak_against_is_not_given():
    """The wealth suffices in the first round, before few are known to be missing."""
    n, k = 100, 4
    sound = EarlyRepeats(n, k, 0.2, alpha=ALPHA, blocks=_alike(n, k))
    _add(sound, [[0.0] * n] * k)
    assert sound.decision is Decision.PASS
    assert n < sound.looked_at < 2 * n
    test = EarlyRepeats(n, k, 0.2, alpha=ALPHA, blocks=_alike(n, k))
    _add(test, [[0.0] * n, [-1.0] * n, [-1.0] * n, [-1.0] * n])
    assert test.decision is not Decision.PASS


def test_a_missing_answer_makes_both_bets_poorer_and_counts_as_missing():
    logs = []
    for missing in (0, 1):
        test = EarlyRepeats(50, 4, 0.1, alpha=ALPHA, blocks=_alike(50, 4))
        _ = [test.update_unit([(0.0, 0.0)]) for _ in range(30)]
        test.update_unit([(-1.0, 1.0) if missing else (0.0, 0.0)], missing)
        assert (test.missing, test.looked_at) == (missing, 31)
        logs.append((test.log_wealth_pass, test.log_wealth_fail, test.log_wealth_answered))
    assert all(after < before for before, after in zip(*logs, strict=True))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=5), st.integers(1, 19), st.integers(0, 3))
def test_so_few_missing_so_far_are_as_unlikely_as_the_evidence_says(
    counts: list[int], asked: int, shown: int
):
    """Sum over all subsets of prompts that a round may have asked when it was looked at."""
    k, n = 4, len(counts)
    total, rounds, rest = sum(counts), *divmod(asked, n)
    share = asked / (n * k)
    if not share < 1.0 or shown > total * share - 1.0:
        return
    chance = 0.0
    subsets = list(itertools.combinations(range(n), rest))
    for subset in subsets:
        law = numpy.ones(1)
        for i, lost in enumerate(counts):
            draws = rounds + (i in subset)
            ways = [math.comb(lost, j) * math.comb(k - lost, draws - j) for j in range(draws + 1)]
            law = numpy.convolve(law, numpy.array(ways) / math.comb(k, draws))
        chance += float(law[: shown + 1].sum()) / len(subsets)
    terms = (math.comb(total, j) * share**j * (1 - share) ** (total - j) for j in range(shown + 1))
    bound = math.fsum(terms)
    assert chance <= bound * (1.0 + 1e-9) + 1e-12
    bet = AnsweredRounds(n * k, total - 1)
    for place in range(asked):
        bet.add(int(place < shown))
    part = ON_NONE_MISSING if not shown else (1.0 - ON_NONE_MISSING) / 2.0**shown
    assert bet.log in (pytest.approx(math.log(part / bound)), math.inf)


@pytest.mark.parametrize("where", ["in two prompts", "one of many prompts"])
def test_one_answer_too_many_goes_unnoticed_with_probability_eps_at_most(where: str):
    eps, n, k, most, runs = 0.1, 60, 8, 15, 400
    random, found = numpy.random.default_rng(8), 0
    for _ in range(runs):
        lost = numpy.zeros((k, n))
        if where == "in two prompts":
            lost[:, random.choice(n, 2, replace=False)] = 1.0
        else:
            lost[random.integers(0, k, 16), random.choice(n, 16, replace=False)] = 1.0
        bet, best = AnsweredRounds(n * k, most), -math.inf
        for one in lost.ravel().tolist():
            bet.add(int(one))
            best = max(best, bet.log)
        assert bet.log == -math.inf
        found += best >= -math.log(eps)
    assert found <= acceptance_region(runs, eps)[1]
    if where == "one of many prompts":
        assert found > 0.1 * eps * runs


def test_a_few_missing_answers_are_forgiven_later():
    needed = []
    for lost in range(4):
        bet, t = AnsweredRounds(3200, 64), 0
        while bet.log < math.log(100.0):
            bet.add(int(t < lost))
            t += 1
        needed.append(t)
    assert needed == sorted(needed)
    assert 200 < needed[0] < needed[1] < 500
    bet = AnsweredRounds(10, 1)
    for _ in range(9):
        bet.add(0)
    assert bet.log == math.inf


@given(st.integers(2, 12), st.integers(2, 70))
def test_every_block_has_a_round(runs: int, rounds: int):
    found = make_blocks([[0.0]] * runs, rounds, 0.1)
    assert len(found.ends) == len(found.offsets) == min(runs, rounds)
    assert found.ends == sorted({*found.ends})
    assert (found.ends[0] >= 1, found.ends[-1]) == (True, rounds)


@given(st.integers(1, 40), st.integers(1, 40))
def test_parts_differ_by_one_at_most(count: int, parts: int):
    sizes = Counter(split_evenly(count, min(count, parts)))
    assert len(sizes) == min(count, parts)
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_what_is_no_unit_of_the_plan_is_refused():
    test = EarlyRepeats(2, 2, 0.1, alpha=ALPHA)
    with pytest.raises(ServeEvalError, match="not a range"):
        test.update_unit([(0.5, -0.5)])
    _add(test, [[0.0, 0.0]] * 2)
    with pytest.raises(ServeEvalError, match="more values than the 4 planned"):
        test.update_unit([(0.0, 0.0)])
