"""A copy of a run with other scores says what changed, and its unchanged tasks are no new tests."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.report.results_table import DeploymentRow, ResultCell
from serve_eval.schema import VerdictOutcome
from serve_eval.series.corrections import add_stars, correct_cells
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


def _write(file: Path, scorer: object) -> None:
    cases = [
        {"case": f"n{i}", "input": {"prompt": f"What is {i}?"}, "expected": i} for i in range(12)
    ]
    tasks = {"sums": {"scorer": scorer, "cases": cases}, "other": {"scorer": "numeric"}}
    tasks["other"]["cases"] = cases
    file.write_text(json.dumps(tasks))


def _export(*arguments: str | Path) -> str:
    done = serve_eval("runs", "export", *arguments, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_column_says_the_changed_options_of_its_scorer(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    asked = ("run", "--launcher", "simulated", "-m", "org/m", "--cases", file, "--no-reference")
    _write(file, "numeric")
    serve_eval(*asked, "-o", tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    _write(file, {"numeric": {"absolute": 10}})
    serve_eval(*asked, "-o", tmp_path / "second")
    runs = (tmp_path / "first", tmp_path / "second")
    first, second = csv.DictReader(io.StringIO(_export(*runs, "--format", "csv"), newline=""))
    changed = "cases:sums (scorer numeric.absolute 10)"
    assert first["cases:sums value"]
    assert second[f"{changed} value"] == "100"
    assert (first[f"{changed} value"], second["cases:sums value"]) == ("", "")
    alone = _export(runs[1], "--format", "table")
    note = "cases:sums: scored with other than default options: scorer numeric.absolute 10"
    assert note in alone
    assert "default options" not in _export(runs[0], "--format", "table")


def _cell(p: float, answered: str) -> ResultCell:
    return ResultCell(
        value=60.0,
        interval=None,
        outcome=VerdictOutcome.PASS,
        scored=20,
        planned=20,
        answered=answered,
        difference=-5.0,
        difference_interval=(-8.0, -2.0),
        p=p,
        p_rise=1.0,
        p_rule=p,
        finding="FAIL",
        proven="drop",
    )


def _rows(*cells: ResultCell) -> list[DeploymentRow]:
    return [DeploymentRow(model="m", attributes={}, cells=[one]) for one in cells]


def test_the_same_answers_in_a_copy_are_one_test() -> None:
    run, other = _cell(0.01, "a"), _cell(0.02, "b")
    rows = correct_cells(_rows(run, run, other))
    found = [cell for row in rows for cell in row.cells if cell is not None]
    assert [(cell.p_holm, cell.tests) for cell in found] == [(0.02, 2), (0.02, 2), (0.02, 2)]
    unknown = replace(run, answered="")
    [first, *_] = correct_cells(_rows(unknown, unknown, other))
    assert first.cells[0] is not None
    assert first.cells[0].tests == 3
    starred, tests = add_stars(_rows(run, run, other))
    assert tests == 2
    shown = [cell.p_table for row in starred for cell in row.cells if cell is not None]
    assert shown == [0.04, 0.04, 0.04]
