"""The upper tail of a binomial distribution, by hand."""

from __future__ import annotations

import pytest

from serve_eval.stats.sign_tests import binomial_tail


@pytest.mark.parametrize(
    ("successes", "trials", "chance", "tail"),
    [(0, 3, 0.5, 1.0), (2, 3, 0.5, 0.5), (3, 3, 0.5, 0.125), (1, 2, 0.3, 0.51), (0, 0, 0.3, 1.0)],
)
def test_the_tail_counts_this_number_and_all_above(
    successes: int, trials: int, chance: float, tail: float
) -> None:
    assert binomial_tail(successes, trials, chance) == pytest.approx(tail)
