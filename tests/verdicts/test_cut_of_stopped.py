"""Test that the verdict of an early stop has the bound for cut answers."""

from __future__ import annotations

import pytest

from serve_eval.schema import Metric, Outcome, TaskResult, Verdict, VerdictOutcome
from serve_eval.verdicts.cut_answers import warn_of_stopped

RESULT = TaskResult(
    task="t",
    metric=Metric(),
    planned=40,
    scored=10,
    failed=0,
    truncated=2,
    stopped_in_reasoning=0,
    outcomes={Outcome.CORRECT: 5, Outcome.WRONG: 5},
    failures={},
    value=50.0,
    bounds=(50.0, 50.0),
    parts={},
    breakdown={},
    cut={"max_tokens": 2},
    cut_value=70.0,
    cut_bounds=(70.0, 70.0),
)


@pytest.mark.parametrize("outcome", [VerdictOutcome.FAIL, VerdictOutcome.PASS])
def test_an_early_stop_has_the_bound_and_a_fail_says_so(outcome: VerdictOutcome) -> None:
    found = warn_of_stopped(
        Verdict(task="t", outcome=outcome, evaluated=None, rule="classic"), RESULT
    )
    assert found.outcome is outcome
    assert found.cut is not None
    assert (found.cut.cut, found.cut.value, found.cut.outcome) == (2, 70.0, None)
    told = "cut_answers: the early stop counted the 2 cut answers as they are"
    assert [line[: len(told)] for line in found.warnings] == (
        [told] if outcome is VerdictOutcome.FAIL else []
    )
