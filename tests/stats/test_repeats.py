"""Test pass@k and the vote by hand, and pass@k against the enumeration of all draws."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.repeats import Majority, majority, pass_at, standard_error


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_all_draws_with_a_right_answer(
    n: int, data: st.DataObject
) -> None:
    counts = data.draw(st.lists(st.integers(0, n), min_size=1, max_size=4))
    k = data.draw(st.integers(1, n))
    shares = []
    for right in counts:
        draws = list(combinations([True] * right + [False] * (n - right), k))
        shares.append(sum(any(draw) for draw in draws) / len(draws))
    found = pass_at(counts, n, k)
    assert found.value == found.low == found.high == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize(
    ("right", "n", "k"), [([], 3, 1), ([1], 3, 0), ([1], 3, 4), ([4], 3, 1), ([-1], 3, 1)]
)
def test_what_has_no_pass_at_k_is_said(right: list[int], n: int, k: int) -> None:
    with pytest.raises(ServeEvalError, match=f"pass@{k} needs"):
        pass_at(right, n, k)


@pytest.mark.parametrize(
    ("votes", "score"),
    [
        ([("7", 1.0), ("8", 0.0), ("7", 1.0)], 1.0),
        ([("7", 1.0), ("8", 0.0), ("8", 0.0)], 0.0),
        ([("7", 1.0), ("8", 0.0)], 0.5),
        ([("7", 1.0), (None, 0.0), (None, 0.0)], 1.0),
        ([(None, 0.0), (None, 0.0)], 0.0),
        ([("7", 1.0), ("7", 0.5), ("8", 0.0)], 0.75),
    ],
)
def test_the_answer_with_the_most_votes_counts(
    votes: list[tuple[str | None, float]], score: float
) -> None:
    found = majority([votes])
    assert found is not None
    assert found.value == score


def test_prompts_count_alike_and_none_has_no_vote() -> None:
    tie = [("a", 1.0), ("b", 0.0)]
    assert majority([[("a", 1.0)], [("b", 0.0)]]) == Majority(value=0.5, prompts=2, tied=0)
    assert majority([tie, [("b", 0.0)], tie]) == Majority(value=1 / 3, prompts=3, tied=2)
    assert majority([]) is None
    with pytest.raises(ServeEvalError, match="without votes"):
        majority([[]])


@given(st.data())
def test_pass_at_k_lies_within_what_the_missing_answers_allow(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    k = data.draw(st.integers(1, n))
    known = data.draw(st.lists(st.integers(0, n), min_size=1, max_size=6))
    right = [data.draw(st.integers(0, m)) for m in known]
    found = pass_at(right, n, k, known)
    assert found.low <= found.value <= found.high
    wrong = pass_at(right, n, k)
    best = pass_at([c + n - m for c, m in zip(right, known, strict=True)], n, k)
    assert (found.low, found.high) == pytest.approx((wrong.value, best.value))


def test_prompts_that_lack_answers_are_not_left_out() -> None:
    """60 easy prompts, and 11 answers of hard ones that never came: they lay outside before."""
    right, known = [4] * 30 + [1] * 30, [4] * 30 + [3] * 11 + [4] * 19
    found = pass_at(right, 4, 1, known)
    assert found.low < found.value < found.high
    assert (found.low, found.high) == pytest.approx((150 / 240, 161 / 240))
    complete = pass_at([*right[:30], *right[41:]], 4, 1).value
    assert complete > found.high


def test_the_standard_error_is_by_question() -> None:
    assert standard_error([0.5]) is None
    assert standard_error([0.0, 1.0, 0.0, 1.0]) == pytest.approx(0.5 / 3**0.5)
