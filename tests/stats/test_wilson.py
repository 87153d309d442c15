"""Wilson's interval of a proportion."""

from __future__ import annotations

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.wilson import wilson


@pytest.mark.parametrize(
    ("total", "n", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals_are_met(total: int, n: int, low: float, high: float) -> None:
    assert wilson(total, n, 0.05) == pytest.approx((low, high), abs=5e-5)


def test_all_right_is_the_mirror_of_all_wrong() -> None:
    low, high = wilson(20, 20, 0.05)
    assert (1 - low, 1 - high) == pytest.approx(wilson(0, 20, 0.05)[::-1])


@pytest.mark.parametrize(("total", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_sums_are_refused(total: int, n: int) -> None:
    with pytest.raises(ServeEvalError):
        wilson(total, n, 0.05)
