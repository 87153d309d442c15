"""Figures of repeats are columns of both CSV files, and rows of a PASS among several tasks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

TASKS = {"word_problems": 128, "passkey_short": 24}
"""Tasks with their tokens per answer."""


def test_repeats_have_columns_and_are_shown_of_a_pass(tmp_path: Path) -> None:
    refs = tmp_path / "refs"
    refs.mkdir()
    for task, tokens in TASKS.items():
        entry = f"{{accuracy: 1, protocol: {{temperature: 0.8, max_tokens: {tokens}}}}}"
        (refs / f"{task}.yaml").write_text(f"org/m:\n  - {entry}\n")
    sizes = [
        f"--set={task}.{option}"
        for task in TASKS
        for option in ("num_samples=12", "temperature=0.8")
    ]
    done = serve_eval(
        "run", "--launcher", "simulated", "-m", "org/m", "-t", ",".join(TASKS), "--repeats", "3",
        "--set=launcher.varied=true", *sizes, "--references-dir", refs,
        "-o", tmp_path / "r", COLUMNS="200",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("avg@3 = ") == 2
    report = json.loads((tmp_path / "r/report.json").read_text())
    told = {task["result"]["task"]: task["result"]["stability"] for task in report["tasks"]}
    collected = serve_eval("runs", "table", tmp_path / "r").stdout
    for row in csv.DictReader(io.StringIO(collected, newline="")):
        known = told[row["task"]]
        assert row["repeats"] == "3"
        assert float(row["sd_repeats"]) == pytest.approx(known["sd"], rel=1e-5)
        assert float(row["pass_at_repeats"]) == pytest.approx(known["pass_at"]["3"], rel=1e-5)
        assert float(row["vote"]) == pytest.approx(known["majority"], rel=1e-5)
    exported = serve_eval("runs", "export", tmp_path / "r", "--format", "csv").stdout
    [row] = csv.DictReader(io.StringIO(exported, newline=""))
    noted = serve_eval("runs", "export", tmp_path / "r", "--format", "table").stdout
    assert "reference: org/m, default (word_problems, passkey_short)" in noted
    for task in TASKS:
        assert row[f"{task} repeats"] == "3"
        assert float(row[f"{task} pass at repeats"]) == pytest.approx(told[task]["pass_at"]["3"])
        assert float(row[f"{task} vote"]) == pytest.approx(told[task]["majority"])
