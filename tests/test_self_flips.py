"""Whether two endpoints differ more than one with itself: how often that is said of two that are alike."""

from __future__ import annotations

import random

import pytest
from scipy.stats import binom

from serve_eval.answer_pairs import FLIP_ALPHA, Had, another_answer, self_flips
from serve_eval.rescoring import Line

ROUNDS, PROMPTS = 2000, 200


def _had(values: list[float], answers: list[str | None] | None = None) -> Had:
    lines = {
        str(i): Line(
            id=str(i), outcome="correct", value=value, target="", answer=None if answers is None else answers[i]
        )
        for i, value in enumerate(values)
    }
    return Had(task=None, folder=None, lines=(lines,), said=({},), started_s={})  # type: ignore[arg-type]


def _accused(rng: random.Random, *, changed: float) -> bool:
    """One round: a tenth of the prompts are undecided, and of the others B answers a share otherwise."""
    chance = [rng.random() if rng.random() < 0.1 else float(rng.random() < 0.8) for _ in range(PROMPTS)]
    of_b = [1.0 - p if p in (0.0, 1.0) and rng.random() < changed else p for p in chance]
    runs = [[float(rng.random() < p) for p in known] for known in (chance, chance, of_b)]
    told = self_flips("A", *map(_had, runs))
    assert told is not None
    assert told.own - told.only_own == told.other - told.only_other
    return told.more


def test_two_that_are_alike_are_accused_no_more_often_than_alpha_says() -> None:
    rng = random.Random(5)
    accused = sum(_accused(rng, changed=0.0) for _ in range(ROUNDS))
    assert accused <= binom.ppf(0.999, ROUNDS, FLIP_ALPHA)


def test_one_that_answers_a_tenth_of_the_settled_prompts_otherwise_is_found() -> None:
    rng = random.Random(6)
    assert sum(_accused(rng, changed=0.1) for _ in range(200)) >= 180


@pytest.mark.parametrize(
    ("own", "other", "p"),
    [
        ([0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1], 0.5**8),  # 7 in one way alone: 2**-7, half of it by mid-p
        ([1, 1, 1, 0], [1, 1, 1, 0], 1.0),  # the same ones in both ways say nothing
        ([1, 0], [0, 1], 0.5),
    ],
)
def test_prompts_that_change_in_one_way_alone_decide(own: list[int], other: list[int], p: float) -> None:
    first = _had([0.0] * len(own))
    told = self_flips("A", first, _had([float(x) for x in own]), _had([float(x) for x in other]))
    assert told is not None
    assert told.p == pytest.approx(p)


def test_without_labels_the_answers_decide_and_not_what_they_are_worth() -> None:
    wrong = [0.0] * 8
    first, again = (_had(wrong, ["7"] * 8) for _ in range(2))
    other = _had(wrong, ["8"] * 8)
    by_score, by_answer = (
        self_flips("A", first, again, other),
        self_flips("A", first, again, other, differ=another_answer),
    )
    assert by_score is not None
    assert by_answer is not None
    assert (by_score.other, by_answer.other, by_answer.more) == (0, 8, True)
