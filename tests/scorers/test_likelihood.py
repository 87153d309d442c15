from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers.likelihood import TIED, likeliest


@pytest.mark.parametrize(
    ("told", "answer", "tied"),
    [
        ([[-1.0], [-2.0], [-3.0], [-4.0]], "A", False),
        ([[-4.0], [-3.0], [-2.5], [-2.75]], "C", False),
        (
            [[-0.5, -0.5], [-0.9], [-2.0], [-3.0]],
            "B",
            False,
        ),  # the sum counts, not the mean per token
        ([[-2.0], [-1.0], [-1.0], [-3.0]], "B", True),
        ([[-2.0], [-0.25, -0.75], [-3.0], [-1.0]], "B", True),
        ([[-1.0], [-2.0], [-2.0], [-2.0]], "A", False),  # a tie below the greatest decides nothing
    ],
)
@pytest.mark.parametrize("target", "ABCD")
def test_the_greatest_sum_counts_and_of_several_the_first(
    told: list[list[float]], answer: str, tied: bool, target: str
) -> None:
    score = likeliest(told, "ABCD", target)
    assert (score.answer, score.parts) == (answer, {TIED: float(tied)})
    assert (score.value, score.outcome is Outcome.CORRECT) == (
        float(answer == target),
        answer == target,
    )


@given(st.lists(st.floats(-50, 0), min_size=4, max_size=4), st.floats(-20, 0))
def test_what_all_choices_share_decides_nothing(values: list[float], shared: float) -> None:
    ordered = sorted(values)
    if ordered[3] - ordered[2] < 1e-6:
        return
    alone, after = (likeliest([[*more, v] for v in values], "ABCD", "A") for more in ([], [shared]))
    assert alone.answer == after.answer
