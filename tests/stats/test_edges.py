"""Test the formulas at their edges and on a recorded pair of deployments."""

import itertools
import json
import math

import numpy
import pytest
from scipy.special import bdtr
from scipy.stats import pearson3

from serve_eval.errors import ServeEvalError
from serve_eval.schema import Response, Sample
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.drift import LIMIT, Scale, _chance, false_alarm_chance, limit_for
from serve_eval.stats.drop import Method, drop_test
from serve_eval.stats.early_paired import MarginWealth
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.finding import PairedFinding
from serve_eval.stats.judgement import judge
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.onset import worse_than_usual
from serve_eval.stats.pairs import pair
from serve_eval.stats.permutation import TIE, PermutationTest, _draw, _invert, _on_grid
from serve_eval.stats.planning import SAW_TEETH, _smallest, num_noninferior_for
from serve_eval.stats.repeats import successive_dispersion
from serve_eval.stats.sign_tests import _compute_reached
from serve_eval.tasks import gsm8k


def test_an_acceptance_region_begins_behind_what_is_too_rare():
    """Only P(0 of ten fair throws) may be below, to the last bit: 0 is outside."""
    none = float(bdtr(0, 10, 0.5))
    assert acceptance_region(10, 0.5, 2.0 * none)[0] == 1
    assert acceptance_region(10, 0.5, 1.9 * none)[0] == 0


def _pairs(reference, candidate, weights=None):
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True, weights=weights)


def test_a_single_pair_has_a_mean_and_no_p():
    test = drop_test(_pairs([1.0], [0.0]))
    assert (test.mean, test.se, test.p, test.p_range) == (-1.0, None, None, None)


@pytest.mark.parametrize("method", [Method.PERMUTATION, Method.SIGN_FLIP, Method.EXCHANGE])
def test_weights_count_in_permutation_tests(method):
    """Three prompts of weight 4 fell and three of weight 1 rose.

    Of the 64 signs, three of the heavy ones and those of the same sum are as low.
    """
    reference, candidate = [1.0] * 3 + [0.0] * 3, [0.0] * 3 + [1.0] * 3
    even = drop_test(_pairs(reference, candidate), method)
    uneven = drop_test(_pairs(reference, candidate, [4.0] * 3 + [1.0] * 3), method)
    assert even.p == pytest.approx(0.5)
    # Sums up to -9 of 4 (+-1 +-1 +-1) + (+-1 +-1 +-1): -15, -13 three times, -11 three times, -9
    # once.
    assert uneven.p_exact == pytest.approx((1 + 3 + 3 + 1) / 64)
    assert uneven.p == pytest.approx((1 + 3 + 3 + 0.5) / 64)


def test_a_margin_that_everything_keeps_is_not_bet_against():
    assert MarginWealth(1.0, 0.1).bet(0.5) == 1.0


def test_scores_lie_between_0_and_1_unless_told_otherwise():
    early = EarlyClassic.mean_only(10, 0.5)
    assert early.update([0.0, 1.0, 0.5]) is None
    for value in (-0.01, 1.01):
        with pytest.raises(ServeEvalError, match=r"lies outside 0\.\.1"):
            EarlyClassic.mean_only(10, 0.5).update([value])


def test_an_early_stop_says_what_to_give():
    early = EarlyClassic.mean_only(1, 0.5)
    with pytest.raises(ServeEvalError) as caught:
        early.update_missing(0.5, 2.0)
    assert caught.value.hint == "give the worst and the best value within 0..1"
    early.update([0.5])
    if early.decision is None:
        with pytest.raises(ServeEvalError) as caught:
            early.update([0.5])
        assert caught.value.hint == "give each prompt once"


@pytest.mark.parametrize("flips", [2.0, 40.0, math.inf])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_the_chance_within_one_run_is_the_tail_of_the_skewed_variable(flips, ratio):
    skewness = 0.0 if math.isinf(flips) else 1.0 / math.sqrt(ratio * flips)
    expected = float(pearson3(skewness).sf((3.0 + 0.5) / math.sqrt(ratio)))
    assert _chance(3.0, 1, 0.5, ratio, flips) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("runs", [5, 400])
def test_a_limit_is_the_lowest_one_that_keeps_the_chance_of_so_many_runs(runs):
    scale = Scale(df=20.0)
    limit, target = limit_for(scale, runs=runs), false_alarm_chance(LIMIT, runs=runs)
    assert limit > LIMIT
    assert false_alarm_chance(limit, scale, runs=runs) <= target
    assert false_alarm_chance(limit - 0.1, scale, runs=runs) > target


def test_the_dispersion_of_neighbours_by_hand():
    """The sums 1, 0, 2 differ by -1 and 2; the variances of the two columns are a third each."""
    known = successive_dispersion([[1, 0], [0, 0], [1, 1]])
    assert known == (pytest.approx((1 + 4) / (2 * 2 * (2 / 3))), pytest.approx(2 * 4 / 5))


def test_a_wrong_level_is_told_before_a_wrong_margin():
    with pytest.raises(ServeEvalError, match="alpha"):
        judge(_pairs([1.0] * 20, [1.0] * 20), margin=-1.0, alpha=2.0)


@pytest.mark.parametrize("alike", range(1, 60, 7))
@pytest.mark.parametrize("opposite", range(0, 60, 6))
def test_a_chance_of_everything_is_one_and_no_more(alike, opposite):
    chance = _compute_reached({(1, 1): alike, (1, -1): opposite, (1, 0): 3}, [0, 0])
    assert chance <= 1.0
    assert chance == pytest.approx(1.0)


def test_where_the_usual_value_is_the_worst_it_is_a_bad_one():
    values = numpy.array([0.0, 0.0, 0.0, 1.0])
    assert worse_than_usual(values, 0.0, first=3).tolist() == [True, True, True, False]
    assert worse_than_usual(values, None, first=3).tolist() == [False] * 4
    assert worse_than_usual(values, -1.0, first=3).tolist() == [False] * 4


@pytest.mark.parametrize("largest", [1.0, 100.0])
def test_a_gap_within_rounding_is_no_step(largest):
    """A gap of at most TIE times the largest score is rounding.

    The step is then that of the rest.
    """
    found = _on_grid(numpy.array([[0.0, TIE * largest, largest]]))
    assert found.tolist()[0][0] == 0
    assert found.tolist()[0][2] >= 1


def test_few_large_scores_are_not_inverted():
    """Their sum is far from a bell curve.

    Its characteristic function does not vanish where that of a bell curve does.
    """
    random = numpy.random.default_rng(0)
    units = random.random((2, 400)) * 1e-3
    units[:, 0] = 0.0, 1.0
    assert _invert(units, 1) is None


@pytest.mark.parametrize("seed", range(5))
def test_an_inverted_sum_is_that_of_a_bell(seed):
    """The sum of 3000 similar prompts is normal but for the fourth moment.

    By symmetry, .5 is at the mean.
    """
    random = numpy.random.default_rng(seed)
    units = random.random((2, 3000))
    centred = units - units.mean(axis=0)
    z = float(centred[1].sum()) / math.sqrt(float((centred[1] ** 2).sum()))
    found = _invert(units, 1)
    assert found == pytest.approx(0.5 * math.erfc(-z / math.sqrt(2.0)), abs=2e-4)


def test_drawn_permutations_that_all_tie_give_a_half():
    units = numpy.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    assert _draw(units, 1, 9, 0) == PermutationTest(1.0, 0.5)


def test_drawn_permutations_of_several_candidate_runs_come_near_all_of_them():
    """Of four runs, the candidate has two: each prompt has six ways to choose its two scores."""
    units = numpy.array([[5.0, 1.0, 2.0], [3.0, 2.0, 4.0], [1.0, 1.0, 3.0], [2.0, 0.0, 3.0]])
    ways = [[sum(two) for two in itertools.combinations(column, 2)] for column in units.T]
    sums = numpy.array([sum(one) for one in itertools.product(*ways)])
    observed = units[-2:].sum()
    draws = 20_000
    found = _draw(units, 2, draws, 0)
    error = 4.0 * math.sqrt(0.25 / draws)
    assert found.p_exact == pytest.approx(numpy.mean(sums <= observed), abs=error)
    half = numpy.mean(sums < observed) + numpy.mean(sums == observed) / 2.0
    assert found.p_mid == pytest.approx(half, abs=error)


def test_a_planned_number_lies_behind_the_last_tooth():
    wanted = _smallest(lambda n: 0.9 if n >= 10 and n != 12 else 0.1, 0.8, 10.0)
    assert SAW_TEETH > 2
    assert wanted == 13


@pytest.mark.parametrize("level", ["alpha", "beta"])
def test_a_level_out_of_range_is_told_by_its_name(level):
    levels = {"alpha": 0.05, "beta": 0.1, level: 2.0}
    with pytest.raises(ServeEvalError, match=rf"\b{level}\b"):
        num_noninferior_for(0.05, 0.1, levels["alpha"], levels["beta"])


ONE = "gsm8k_Meta-Llama-3.1-405B-Instruct_at_hyperbolic.jsonl"
OTHER = "gsm8k_Llama-3.1-405B-Instruct-Turbo.jsonl"


def _scores(shared, name):
    """Score by the flexible filter.

    It must agree with lm-evaluation-harness's own judgement of every answer.
    """
    task = gsm8k.task(filter="flexible-extract")
    questions = [
        json.loads(line) for line in (shared / "data/gsm8k/test.jsonl").read_text().splitlines()
    ]
    scores = {}
    for line in (shared / "data/recorded" / name).read_text().splitlines():
        row = json.loads(line)
        sample = Sample(id=str(row["idx"]), prompt="", target=questions[row["idx"]]["answer"])
        value = task.score(sample, Response(text=row["output"], finish_reason="stop")).value
        assert value == row["flexible"], row["idx"]
        scores[row["idx"]] = value
    return [scores[i] for i in range(len(questions))]


def test_two_deployments_of_one_model_are_found_alike_and_a_drop_of_one_point_is_excluded(
    shared,
):
    reference, candidate = _scores(shared, ONE), _scores(shared, OTHER)
    pairs = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    assert (sum(reference), sum(candidate), pairs.n) == (1265, 1261, 1319)
    assert (pairs.down, pairs.up) == (13, 9)
    value, mean = 100 * sum(candidate) / 1319, 100 * sum(reference) / 1319
    test = classic_test(1319, mean, 50.0, 0.05, 0.2)
    assert decide((value, value), test.threshold) is Decision.PASS
    told = judge(pairs, margin=(mean - test.threshold) / 100)
    assert (told.finding, told.test.method) == (PairedFinding.PASS, Method.MCNEMAR_MIDP)
    mid_p = (sum(math.comb(22, down) for down in range(14, 23)) + math.comb(22, 13) / 2) / 2**22
    assert told.test.p == pytest.approx(mid_p)
    point = judge(pairs, margin=0.01)
    assert point.noninferior.holds
    assert point.equivalent.holds
    assert not judge(pairs, margin=0.009).noninferior.holds
