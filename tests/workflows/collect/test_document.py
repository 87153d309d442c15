"""The document of collected results counts rows and the verdicts that count."""

from __future__ import annotations

from pathlib import Path

from serve_eval.report.ci_result import CiState
from serve_eval.workflows.collect.document import CollectedRow, make_document


def test_the_verdict_in_a_suite_counts_and_a_row_without_one_is_skipped() -> None:
    rows = [
        CollectedRow(source="s/a", kind="run", task="t", verdict="PASS", suite_verdict="FAIL"),
        CollectedRow(source="s/a", kind="run", task="u", verdict="PASS", value=1.0),
        CollectedRow(source="x.log", kind="trtllm-eval", metric="bleu", value=1.0),
    ]
    document = make_document(rows, ["warning: one was left out"], [Path("s"), Path("x.log")], None)
    [one] = document.conclusions
    assert one.figures == "3 rows of 1 run and 1 result of a log"
    assert one.statements[0].text == "1 FAIL, 1 NOT JUDGED, 1 PASS"
    states = [case.state for case in document.cases]
    assert states == [CiState.FAILURE, CiState.PASSED, CiState.SKIPPED]
    assert document.warnings == ["one was left out"]
    assert document.commands == ["serve-eval runs export s --format table"]
