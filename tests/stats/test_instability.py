from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.instability import instability


def _runs(correct_counts: list[int], runs: int) -> Any:
    """Rows of right/wrong answers in which a prompt's right answers come first."""
    return (numpy.arange(runs)[:, numpy.newaxis] < numpy.array(correct_counts)).astype(float)


def test_ten_prompts_of_three_runs() -> None:
    result = instability(_runs([3, 3, 3, 2, 0, 0, 1, 3, 3, 0], 3))
    assert result.variance == pytest.approx(0.06666666666666667, abs=1e-9)
    assert result.flip_rate == pytest.approx(0.13333333333333333, abs=1e-9)
    assert result.mixed == pytest.approx(0.2)
    assert (result.runs, result.prompts, result.df) == (3, 10, 2)


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
    for vector in vectors("instability"):
        result = instability(_runs(**vector["inputs"]))
        assert result.variance == pytest.approx(vector["expected"]["v"], abs=vector["tolerance"])
        assert result.flip_rate == pytest.approx(vector["expected"]["flip_rate"], abs=vector["tolerance"])


def test_cochran_q_of_two_runs_is_the_mcnemar_statistic() -> None:
    first = numpy.array([1.0] * 30 + [0.0] * 15 + [1.0] * 55)
    second = numpy.array([0.0] * 30 + [1.0] * 15 + [1.0] * 55)
    result = instability([first, second])
    assert result.cochran_q == pytest.approx((30 - 15) ** 2 / 45)
    assert result.p == pytest.approx(math.erfc(math.sqrt(5 / 2)))


def test_an_endpoint_that_never_varied_has_no_q() -> None:
    result = instability([[1, 0, 1], [1, 0, 1]])
    assert (result.variance, result.flip_rate, result.mixed, result.cochran_q, result.p) == (0, 0, 0, None, None)


def test_scores_that_are_not_right_or_wrong_have_a_variance_only() -> None:
    result = instability([[0.2, 0.5], [0.4, 0.5]])
    assert result.variance == pytest.approx(0.01)
    assert result.flip_rate is None


def test_a_prompt_with_a_missing_score_is_left_out() -> None:
    assert instability([[1, math.nan, 0], [1, 0, 1]]) == instability([[1, 0], [1, 1]])


@pytest.mark.parametrize(
    ("runs", "message", "hint"),
    [
        ([[1.0, 0.0]], "two or more runs", "same plan again"),
        ([1.0, 0.0], "two or more runs", "same plan again"),
        ([[math.nan], [1.0]], "no prompt was scored in every run", "failures"),
        ([[math.inf], [1.0]], "finite scores", "scorer"),
    ],
)
def test_runs_that_say_nothing_are_refused(runs: Any, message: str, hint: str) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        instability(runs)
    assert hint in caught.value.hint
