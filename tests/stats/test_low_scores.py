from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.stats.contingency import find_cut


@pytest.mark.parametrize(
    ("values", "best", "low"),
    [
        ([0.5] * 60 + [1.0] * 40, 1.0, 60),
        ([0.5] * 99 + [1.0], 1.0, 99),
        ([0.5] * 100, 1.0, 100),
        ([0.5] * 100, None, 0),
        ([1.0] * 100, 1.0, 0),
        ([0.5] * 5 + [1.0] * 95, 1.0, 5),
        ([0.0] * 2 + [0.5] * 60 + [1.0] * 38, 1.0, 62),
        ([0.5] * 20 + [0.75] * 60 + [1.0] * 20, 1.0, 20),
        ([0.0] * 30 + [1.0] * 70, 1.0, 30),
        ([-7.0, -5.0, -3.0], None, 1),
    ],
)
def test_the_lower_half_of_scores_with_ties(
    values: list[float], best: float | None, low: int
) -> None:
    cut = find_cut(values, best)
    assert sum(value < cut for value in values) == low


@given(st.lists(st.floats(0, 1), min_size=1, unique=True))
def test_of_different_scores_the_lower_half_is_that_of_the_median(values: list[float]) -> None:
    cut = find_cut(values)
    below = sum(value < statistics.median(values) for value in values)
    assert sum(value < cut for value in values) == below or len(values) == 1


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1))
def test_something_is_low_unless_all_scores_are_the_best(values: list[float]) -> None:
    assert any(value < find_cut(values, 1.0) for value in values) == (min(values) < 1.0)
