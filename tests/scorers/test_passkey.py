from __future__ import annotations

import pytest

from serve_eval.schema import Outcome
from serve_eval.scorers.passkey import first_digits


@pytest.mark.parametrize(
    ("text", "outcome", "contained"),
    [
        (" 01868", Outcome.CORRECT, 1),
        (" 01868. The", Outcome.CORRECT, 1),
        ("key 1: 01868", Outcome.WRONG, 1),
        (" 018689", Outcome.WRONG, 0),
        (" 1868", Outcome.WRONG, 0),
        (" lost", Outcome.UNPARSED, 0),
    ],
)
def test_the_first_run_of_digits_decides(text: str, outcome: Outcome, contained: float) -> None:
    score = first_digits(text, "01868")
    assert score.outcome is outcome
    assert score.parts == {
        "first_digits": float(outcome is Outcome.CORRECT),
        "contained": contained,
    }
