from __future__ import annotations

import pytest

from serve_eval.schema import Verdict, VerdictOutcome
from serve_eval.verdicts.exit_code import exit_code


@pytest.mark.parametrize(
    ("outcomes", "code", "strict"),
    [
        (["PASS"], 0, 0),
        (["PASS", "FAIL", "ERROR"], 1, 1),
        (["PASS", "ERROR", "INCONCLUSIVE"], 4, 4),
        (["PASS", "INCONCLUSIVE"], 3, 1),
        (["NO REFERENCE", "PASS"], 3, 1),
        (["INTEGRATION TEST"], 0, 0),
        ([], 5, 5),
    ],
)
def test_the_first_that_holds(outcomes: list[str], code: int, strict: int) -> None:
    verdicts = [
        Verdict(task="t", outcome=VerdictOutcome(o), rule="classic", evaluated=1.0)
        for o in outcomes
    ]
    assert exit_code(verdicts) == code
    assert exit_code(verdicts, strict=True) == strict
