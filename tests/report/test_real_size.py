from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.report.summary.figures import write_number


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (1.8, 3, "1.800"),
        (0.0, 3, "0.000"),
        (1e-05, 4, "1e-05"),
        (-0.0004, 3, "-0.0004"),
        (0.0006, 3, "0.001"),
        (0.004, 2, "0.004"),
    ],
)
def test_a_small_number_keeps_its_size(value: float, decimals: int, text: str) -> None:
    assert write_number(value, decimals) == text


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 6))
def test_only_zero_is_written_as_zero(value: float, decimals: int) -> None:
    assert (float(write_number(value, decimals)) == 0.0) == (value == 0.0)
