from __future__ import annotations

import math

import numpy
import pytest

from serve_eval.stats.judgement import anchor_pairs, anchor_test, judge
from serve_eval.stats.pairs import Pairs, pair
from serve_eval.stats.sign_tests import mcnemar

NAN = math.nan


def _pairs(reference: list[list[float]], candidate: list[float], *, better: bool = True) -> Pairs:
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=better)


def _runs(patterns: dict[str, int]) -> Pairs:
    """Return the given number of prompts of each pattern.

    The digits of a pattern are the scores of three reference runs and of the candidate.
    """
    columns = [
        [NAN if c == "-" else float(c) for c in pattern]
        for pattern, count in patterns.items()
        for _ in range(count)
    ]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return _pairs(rows[:3], rows[3])


def test_anchors_are_the_prompts_that_all_runs_but_the_last_had_right() -> None:
    test = anchor_test(_runs({"1111": 20, "1110": 6, "1101": 2, "1001": 5, "0110": 5, "0000": 30}))
    assert test is not None
    assert (test.anchors, test.reference_lost, test.candidate_lost) == (28, 2, 6)
    assert test.test.p == mcnemar(6, 2).p_mid


def test_the_last_reference_run_has_no_part_in_the_choice() -> None:
    """Otherwise its answers would be right on all anchors, and any candidate would look worse."""
    random = numpy.random.default_rng(1)
    chances = random.random((400, 150))
    alarms = 0
    for chance in chances:
        runs = (random.random((4, 150)) < chance).astype(float)
        test = anchor_test(pair(runs[:3], runs[3], lo=0.0, hi=1.0, higher_is_better=True))
        assert test is not None
        assert test.test.p is not None
        alarms += test.test.p <= 0.05
    assert alarms <= 32  # .05 of 400 is 20; more than 32 has a chance of .003


def test_a_missing_answer_is_lost_for_one_end_and_kept_for_the_other() -> None:
    test = anchor_test(_runs({"1111": 30, "1110": 4, "111-": 3}))
    assert test is not None
    assert test.test.p_range == (mcnemar(4, 0).p_mid, mcnemar(7, 0).p_mid)[::-1]
    assert test.candidate_lost == 4


@pytest.mark.parametrize(
    "pairs",
    [
        _pairs([[1.0] * 50], [0.0] * 50),
        _runs({"1110": 9, "0111": 80}),
        pair(
            numpy.zeros((3, 50)), numpy.zeros(50), lo=-math.inf, hi=math.inf, higher_is_better=True
        ),
    ],
    ids=["one reference run", "few anchors", "no best score"],
)
def test_without_anchors_there_is_no_test(pairs: Pairs) -> None:
    assert anchor_pairs(pairs) is None
    assert judge(pairs, margin=0.1).anchors is None


def test_where_lower_is_better_the_lowest_score_is_right() -> None:
    low = [[0.0] * 40, [0.0] * 40]
    test = anchor_test(_pairs(low, [1.0] * 6 + [0.0] * 34, better=False))
    assert test is not None
    assert (test.anchors, test.candidate_lost) == (40, 6)
    assert test.test.p == mcnemar(6, 0).p_mid


def test_anchors_keep_the_weights_of_their_prompts() -> None:
    """Of 40 anchors four are lost that count three times."""
    found = pair(
        [[0.0] * 5 + [1.0] * 40] * 2,
        [0.0] * 9 + [1.0] * 36,
        lo=0.0,
        hi=1.0,
        higher_is_better=True,
        weights=[3.0] * 9 + [1.0] * 36,
    )
    test = anchor_test(found)
    assert test is not None
    assert test.test.mean == pytest.approx(-12.0 / 48.0)


def test_damage_of_stable_prompts_shows_among_the_anchors_with_a_fraction_of_the_noise() -> None:
    random = numpy.random.default_rng(5)
    chance = numpy.where(random.random(1500) < 0.26, random.random(1500), 1.0)
    runs = (random.random((11, 1500)) < chance).astype(float)
    runs[10] = numpy.where(random.random(1500) < 0.02, 0.0, runs[10])
    told = judge(pair(runs[:10], runs[10], lo=0.0, hi=1.0, higher_is_better=True), margin=0.03)
    assert told.anchors is not None
    assert told.anchors.test.p is not None
    assert told.test.p is not None
    assert told.anchors.test.p < told.test.p / 10
