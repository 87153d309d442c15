"""Test if other answers are farther than own repeats: level, power and small cases by hand."""

from __future__ import annotations

import numpy
import pytest
from scipy.stats import binom

from serve_eval.errors import ServeEvalError
from serve_eval.stats.distances import farther_than_own, rank_distances

ROUNDS, PROMPTS = 120, 60


def _answer(
    rng: numpy.random.Generator, own: int, other: int, changed: float
) -> list[numpy.ndarray]:
    """Return the distances of scores and of texts; a third of the prompts are undecided.

    The other endpoint answers a share of the prompts with other chances.
    """
    chances = numpy.where(rng.random(PROMPTS) < 0.3, rng.random(PROMPTS), 0.95)[:, numpy.newaxis]
    touched = rng.random((PROMPTS, 1)) < changed
    theirs = numpy.where(touched, 1.0 - chances, chances)
    scores = numpy.concatenate(
        [rng.random((PROMPTS, own)) < chances, rng.random((PROMPTS, other)) < theirs], axis=1
    ).astype(float)
    texts = 3.0 * scores + rng.integers(2, size=scores.shape)
    return [numpy.abs(one[:, :, None] - one[:, None, :]) for one in (scores, texts)]


@pytest.mark.parametrize(("own", "other"), [(2, 2), (4, 4), (3, 1)])
def test_alike_endpoints_are_accused_no_more_often_than_alpha_says(own: int, other: int) -> None:
    rng = numpy.random.default_rng(own)
    found = [
        farther_than_own([rank_distances(one) for one in _answer(rng, own, other, 0.0)], own).p
        for _ in range(ROUNDS)
    ]
    for alpha in (0.01, 0.05, 0.2):
        assert sum(p <= alpha for p in found) <= binom.ppf(0.999, ROUNDS, alpha)


def test_more_repeats_find_more() -> None:
    rng = numpy.random.default_rng(7)
    found = {
        times: sum(
            farther_than_own(_answer(rng, times, times, 0.15), times).p <= 0.01 for _ in range(40)
        )
        for times in (2, 6)
    }
    assert found[2] < found[6]
    assert found[6] >= 38


def test_repeats_of_one_prompt_are_no_further_prompts() -> None:
    """Six own answers that agree and six other ones that agree are one prompt that differs."""
    answers = numpy.array([0.0] * 6 + [1.0] * 6)
    one = numpy.abs(answers[:, None] - answers[None, :])[numpy.newaxis]
    assert farther_than_own([one], 6).p == pytest.approx(2 / 924, abs=0.002)
    assert farther_than_own([numpy.zeros_like(one)], 6).p == 1.0


def test_the_smallest_p_of_two_measures_is_corrected_for_both() -> None:
    rng = numpy.random.default_rng(3)
    scores, texts = _answer(rng, 3, 3, 0.3)
    both = farther_than_own([scores, texts], 3)
    assert min(both.each) <= both.p <= 2.2 * min(both.each) + 0.0002
    again = farther_than_own([scores, texts], 3)
    assert (again.p, again.each) == (both.p, both.each)


def test_ranks_keep_two_kinds_of_distances_as_far_apart_in_each_prompt() -> None:
    rng = numpy.random.default_rng(4)
    answers = (rng.random((20, 4)) < 0.5).astype(float)
    given = numpy.abs(answers[:, :, None] - answers[:, None, :])
    upper = numpy.triu_indices(4, 1)
    gaps = {
        round(float(ranks[given_one == 1.0].min() - ranks[given_one == 0.0].max()), 9)
        for ranks, given_one in zip(rank_distances(given)[:, *upper], given[:, *upper], strict=True)
        if 0.0 < given_one.sum() < 6.0
    }
    assert gaps == {0.5}


@pytest.mark.parametrize("own", [1, 3])
def test_too_few_answers_are_refused(own: int) -> None:
    with pytest.raises(ServeEvalError, match="show no noise"):
        farther_than_own(numpy.zeros((1, 5, 3, 3)), own)
