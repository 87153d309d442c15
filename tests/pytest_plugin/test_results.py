"""Test how the state of a run ends its test."""

from __future__ import annotations

import pytest

from serve_eval.pytest_plugin import AccuracyNotMeasured, AccuracyRegression, AccuracyUndecided
from serve_eval.pytest_plugin.results import EvaluatedTest, conclude, end_test
from serve_eval.report.ci_result import CiCase, CiState


@pytest.mark.parametrize(
    ("state", "strict", "ending", "text"),
    [
        (CiState.FAILURE, False, AccuracyRegression, "summary"),
        (CiState.ERROR, False, AccuracyNotMeasured, "summary"),
        (CiState.SKIPPED, False, pytest.skip.Exception, "reason"),
        (CiState.SKIPPED, True, AccuracyUndecided, "summary"),
        (CiState.PASSED, True, None, ""),
    ],
)
def test_a_test_ends_as_its_worst_verdict(
    state: CiState, strict: bool, ending: type[BaseException] | None, text: str
) -> None:
    result = EvaluatedTest(state=state, text="summary", reason="reason", properties={})
    assert result.passed is (ending is None)
    if ending is None:
        end_test(result, strict=strict)
        return
    with pytest.raises(ending) as raised:
        end_test(result, strict=strict)
    assert str(raised.value) == text
    assert type(raised.value) is ending


def test_a_part_of_the_path_without_evidence_is_undecided_and_not_skipped() -> None:
    part = CiCase(group="path", name="kv_transfer", state=CiState.SKIPPED, message="no evidence")
    given = {"kept": True, "properties": {}, "warnings": (), "undecided": "", "rehearsal": False}
    result = conclude([part], "summary", **given)
    with pytest.raises(AccuracyUndecided) as raised:
        end_test(result, strict=True)
    assert raised.value.line == "INCONCLUSIVE kv_transfer; no evidence"
