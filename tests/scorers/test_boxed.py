from __future__ import annotations

import pytest

from serve_eval.schema import Outcome
from serve_eval.scorers.boxed import extract, integer_answer


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (r"so \boxed{70}.", "70"),
        (r"\boxed{1} then \boxed{70}", "70"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{70", r"\boxed{70"),
        (r"$x=70$", "x=70"),
        (r"$1 and 70$", "1 and 70"),
        (r"\boxed 70$ is it", "70"),
        ("70", "70"),
        ("", ""),
    ],
)
def test_the_place_of_the_answer(text: str, place: str) -> None:
    assert extract(text) == place


@pytest.mark.parametrize(
    ("text", "outcome", "string", "integer"),
    [
        (r"\boxed{70}", Outcome.CORRECT, 1, 1),
        (r"\boxed{ 70 ^\circ}", Outcome.CORRECT, 1, 1),
        (r"$n = 70$", Outcome.CORRECT, 1, 1),
        (r"\boxed{070}", Outcome.WRONG, 0, 1),
        (r"\boxed{\\!70}", Outcome.WRONG, 0, 1),
        (r"\boxed{..=70}", Outcome.WRONG, 0, 1),
        (" .=70", Outcome.WRONG, 0, 1),
        (r"\boxed{-70}", Outcome.WRONG, 0, 0),
        ("The answer is 70", Outcome.WRONG, 0, 1),
        ("70", Outcome.CORRECT, 1, 1),
        (r"\boxed{9}" + "1" * 5000, Outcome.WRONG, 0, 0),
        ("1" * 5000, Outcome.WRONG, 0, 0),
        ("no idea", Outcome.UNPARSED, 0, 0),
    ],
)
def test_text_and_number_stand_side_by_side(
    text: str, outcome: Outcome, string: float, integer: float
) -> None:
    score = integer_answer(text, "70")
    assert (score.outcome, score.value) == (outcome, string)
    assert score.parts == {"string": string, "integer": integer}


def test_a_target_with_leading_zeros_is_the_same_number() -> None:
    assert integer_answer(r"\boxed{33}", "033").parts["integer"] == 1.0
