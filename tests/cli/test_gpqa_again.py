"""Test that GPQA's choices keep their order when a run is scored or judged again."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from serve_eval.datasets.known import GPQA_PASSWORD
from tests.cli.command import serve_eval

NAME = "gpqa_diamond.csv"


def _write(file: Path, rows: list[dict[str, str]]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    file.write_text(text.getvalue())


def _result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())["tasks"][0]["result"]
    return found


def test_answers_are_scored_by_the_order_in_which_the_choices_were_asked(
    data_root: Path, tmp_path: Path
) -> None:
    """Rows in another order would give each question other choices, and 25 % of random letters."""
    with zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive:
        text = archive.read(f"dataset/{NAME}", pwd=GPQA_PASSWORD).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    file, out = tmp_path / "gpqa" / NAME, tmp_path / "out"
    file.parent.mkdir()
    _write(file, rows)
    ran = serve_eval(
        *("run", "--tasks", "gpqa", "--launcher", "simulated", "--set", "launcher.accuracy=0.9"),
        *("--no-reference", "--limit", "20", "--dataset-root", tmp_path, "-o", out),
    )
    assert ran.returncode == 3, ran.stderr  # no reference
    asked = [json.loads(line) for line in (out / "prompts/gpqa.jsonl").read_text().splitlines()]
    assert len(asked) == 20
    assert all("D) " in str(one) for one in asked)
    assert serve_eval("judge", "--rescore", out, "-o", tmp_path / "again").returncode in (0, 3)
    assert _result(tmp_path / "again")["value"] == _result(out)["value"]

    _write(file, rows[::-1])
    rescored = serve_eval("judge", "--rescore", out, "-o", tmp_path / "other")
    judged = serve_eval("judge", out, "--verdict", "classic", "--set", "no_reference=true")
    assert rescored.returncode == 2
    assert "the data is not what" in rescored.stderr
    assert judged.returncode == 2
    assert "samples" in judged.stderr
