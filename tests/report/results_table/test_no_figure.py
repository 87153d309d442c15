"""Every cell without a figure says why, in every format, and never for the reason of another."""

from __future__ import annotations

import csv
import io
import re

import pytest

from serve_eval.report.results_table import (
    FORMATS,
    DeploymentRow,
    ResultCell,
    ResultsTable,
    TaskColumn,
    write_table,
)
from serve_eval.report.results_table.cell import name_outcome
from serve_eval.schema import Metric, VerdictOutcome

WHY = "something is the matter"


def _table(outcome: VerdictOutcome, *, value: float | None, against: str, why: str) -> ResultsTable:
    cells = [
        ResultCell(
            value=value,
            interval=None,
            outcome=outcome,
            scored=20,
            planned=20,
            run="a",
            reason=why if value is None else "",
            no_difference=name_outcome(outcome, why),
        ),
        None,
    ]
    columns = [
        TaskColumn(task=name, heading=name, metric=Metric(), planned=20)
        for name in ("gsm8k", "mmlu")
    ]
    row = DeploymentRow(model="org/m", attributes={"run": "a"}, cells=cells)
    return ResultsTable(columns=columns, rows=[row], shown=["run"], against=against)


def _read(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>|[{}\\]", " ", text).split())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", VerdictOutcome)
@pytest.mark.parametrize("value", [None, 65.0])
def test_a_difference_that_is_missing_has_its_own_reason(
    name: str, outcome: VerdictOutcome, value: float | None
) -> None:
    table = _table(outcome, value=value, against="the reference", why=WHY)
    text = _read(write_table(table, name))
    assert name_outcome(outcome, WHY) in text
    assert "not run in this way, or not finished" in text
    for other in {one.value for one in VerdictOutcome} - {outcome.value}:
        assert other not in text.replace(outcome.value, "")


@pytest.mark.parametrize("name", ["latex", "svg"])
@pytest.mark.parametrize("outcome", VerdictOutcome)
def test_a_paper_leaves_paths_out_and_not_the_reason(name: str, outcome: VerdictOutcome) -> None:
    table = _table(outcome, value=None, against="it", why=f"{WHY}; see /etc/x; run serve-eval y")
    text = _read(write_table(table, name))
    assert f"no difference: {name_outcome(outcome, WHY)}" in text
    assert "/etc" not in text
    only = _table(outcome, value=None, against="it", why="see /etc/x")
    text = _read(write_table(only, name))
    judged = outcome in (VerdictOutcome.PASS, VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE)
    reason = "the runs cannot be paired" if judged else outcome.value
    assert f"no difference: {reason}" in text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", VerdictOutcome)
def test_a_value_that_is_missing_has_its_reason(name: str, outcome: VerdictOutcome) -> None:
    text = _read(write_table(_table(outcome, value=None, against="", why=WHY), name))
    assert WHY in text
    bare = write_table(_table(outcome, value=None, against="", why=""), name)
    assert outcome.value in _read(bare)


def test_csv_says_why_there_is_no_difference_next_to_a_value() -> None:
    table = _table(VerdictOutcome.NO_REFERENCE, value=65.0, against="", why=WHY)
    [row] = csv.DictReader(io.StringIO(write_table(table, "csv"), newline=""))
    assert (row["gsm8k value"], row["gsm8k no value because"]) == ("65", "")
    assert row["gsm8k no difference because"] == f"NO REFERENCE: {WHY}"
