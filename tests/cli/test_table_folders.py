"""One deployment in several folders is one row, unless two of its runs asked a task alike."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


def _run(folder: Path, task: str, *more: str, n: int = 12) -> None:
    done = serve_eval(
        "run", "--launcher", "simulated", "-m", "org/m", "-t", task, "--no-reference",
        f"--set={task}.num_samples={n}", *more, "-o", folder,
    )  # fmt: skip
    assert (folder / "report.json").exists(), done.stderr


def _export(*arguments: str | Path) -> str:
    done = serve_eval("runs", "export", *arguments, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rows(*arguments: str | Path) -> dict[str, dict[str, str]]:
    text = _export(*arguments, "--format", "csv")
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Return a folder with two deployments that were asked for word problems."""
    _run(tmp_path / "one/bf16", "word_problems")
    _run(tmp_path / "one/fp8", "word_problems", "--set=launcher.damage=0.9")
    return tmp_path / "one"


def test_runs_with_other_tasks_join_the_row_of_their_deployment(one: Path, tmp_path: Path) -> None:
    _run(tmp_path / "two/bf16", "passkey_short")
    _run(tmp_path / "two/fp8", "passkey_short", "--set=launcher.damage=0.9")
    rows = _rows(one, tmp_path / "two")
    assert sorted(rows) == ["bf16", "fp8"]
    for row in rows.values():
        assert row["word_problems value"]
        assert row["passkey_short value"]
    text = _export(one, tmp_path / "two", "--format", "table")
    assert "no two of which asked the same: bf16, fp8; --all shows each" in " ".join(text.split())
    every = _rows(one, tmp_path / "two", "--all")
    assert sorted(every) == ["one/bf16", "one/fp8", "two/bf16", "two/fp8"]


def test_a_folder_is_named_only_where_two_runs_asked_a_task_alike(
    one: Path, tmp_path: Path
) -> None:
    _run(tmp_path / "two/bf16", "word_problems")
    _run(tmp_path / "two/fp8", "passkey_short", "--set=launcher.damage=0.9")
    assert sorted(_rows(one, tmp_path / "two")) == ["fp8", "one/bf16", "two/bf16"]


def test_another_option_of_the_launcher_is_another_deployment(one: Path, tmp_path: Path) -> None:
    _run(tmp_path / "two/fp8", "passkey_short", "--set=launcher.damage=0.5")
    assert sorted(_rows(one, tmp_path / "two")) == ["bf16", "one/fp8", "two/fp8"]


@pytest.mark.parametrize("named", ["two", "two/fp8"])
def test_a_subset_is_paired_in_the_row_of_its_deployment(
    named: str, one: Path, tmp_path: Path
) -> None:
    _run(tmp_path / "two/fp8", "word_problems", "--set=launcher.damage=0.9", n=8)
    asked = (one, tmp_path / named, "--differences", "--baseline", "bf16")
    [row] = _rows(*asked).values()
    assert row["run"] == "fp8"
    assert row["word_problems (n 12) difference"]
    assert row["word_problems (n 8) difference"]
    assert row["word_problems (n 8) common prompts"] == "8"


def test_suites_of_the_same_deployments_share_rows(tmp_path: Path) -> None:
    for name, task in (("nightly", "word_problems"), ("texts", "passkey_short")):
        (tmp_path / f"{name}.yaml").write_text(
            "defaults: {model: org/m, no_reference: true, launcher: simulated,"
            f" tasks: [{{{task}: {{num_samples: 8}}}}]}}\n"
            "plans:\n  - {name: bf16}\n  - {name: fp8, launcher: {name: simulated, damage: 0.9}}\n"
            "  - {name: lost, launcher: {name: simulated, no_completions: true, no_chat: true}}\n"
        )
        serve_eval("run", tmp_path / f"{name}.yaml", "-o", tmp_path / name)
    rows = _rows(tmp_path / "nightly", tmp_path / "texts")
    assert sorted(rows) == ["bf16", "fp8", "lost"]
    assert sorted(_rows(tmp_path)) == ["bf16", "fp8", "lost"]
    for task in ("word_problems", "passkey_short"):
        assert rows["fp8"][f"{task} value"]
        assert rows["lost"][f"{task} verdict"]
