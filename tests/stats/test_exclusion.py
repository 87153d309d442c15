"""Test the margins that equal answers exclude."""

from __future__ import annotations

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.planning import least_excluded, num_pairs_to_exclude
from serve_eval.stats.score_bounds import score_bounds


@pytest.mark.parametrize(
    ("margin", "alpha", "needed"), [(0.01, 0.05, 268), (0.05, 0.05, 52), (0.01, 0.025, 381)]
)
def test_the_least_number_of_equal_answers(margin: float, alpha: float, needed: int) -> None:
    assert num_pairs_to_exclude(margin, alpha) == needed
    assert score_bounds(0, 0, needed, alpha)[0] > -margin > score_bounds(0, 0, needed - 1, alpha)[0]


@pytest.mark.parametrize("pairs", [10, 100, 1919])
def test_the_drop_that_is_not_excluded_is_the_bound(pairs: int) -> None:
    assert least_excluded(pairs, 0.05) == pytest.approx(-score_bounds(0, 0, pairs, 0.05)[0])


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(ServeEvalError, match="alpha"):
        least_excluded(10, 1.0)
    with pytest.raises(ServeEvalError, match="pairs"):
        least_excluded(0, 0.05)
    with pytest.raises(ServeEvalError, match="margin"):
        num_pairs_to_exclude(-0.01, 0.05)
