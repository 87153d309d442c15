"""Test pass@k and the vote by hand, and pass@k against the enumeration of all draws."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.repeats import majority, pass_at


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
    assert pass_at(counts, n, k) == pytest.approx(sum(shares) / len(shares))


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
    assert majority([votes]) == score


def test_prompts_count_alike_and_none_has_no_vote() -> None:
    assert majority([[("a", 1.0)], [("b", 0.0)]]) == 0.5
    assert majority([]) is None
    with pytest.raises(ServeEvalError, match="without votes"):
        majority([[]])
