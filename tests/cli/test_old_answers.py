"""Test that old answers are used again as they were asked, and that this is told."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from serve_eval.datasets.known import GPQA_PASSWORD
from tests.cli.command import serve_eval

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
SIDE = """\
model: model
launcher: {simulated: {accuracy: 1.0}}
tasks: [{word_problems: {num_samples: 40}}]
"""
RUN = ("run", "--launcher", "simulated", "--tasks", "word_problems", "--limit", "5")


def test_a_finished_run_says_that_nothing_was_asked(tmp_path: Path) -> None:
    how = (*RUN, "--no-reference", "-o", tmp_path / "out")
    told = r"nothing was asked: .* at \d{4}-\d\d-\d\d \d\d:\d\d UTC; .*--rerun all"
    first, again = serve_eval(*how), serve_eval(*how, "-v")
    assert not re.search("nothing was asked", first.stdout)
    assert re.search(told, again.stdout)
    assert re.search(told, (tmp_path / "out/summary.md").read_text().replace("\\", ""))


def test_every_line_of_a_finished_run_says_that_nothing_was_asked(tmp_path: Path) -> None:
    how = (*RUN, "--no-reference", "-o", tmp_path / "out")
    serve_eval(*how)
    line = ("--notify-text", "-", "--junit", tmp_path / "j.xml", "-q")
    again = serve_eval(*how, *line, GITHUB_ACTIONS="true")
    told = r"nothing was asked: the last answer came at \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    *_, quiet, verdict, notify = again.stdout.splitlines()
    assert re.fullmatch(told, quiet), again.stdout
    assert "NO REFERENCE" in verdict
    assert re.match(f"{told}: NO REFERENCE word_problems ", notify), again.stdout
    assert re.search(f"skipped message=.{told}: NO REFERENCE", (tmp_path / "j.xml").read_text())
    notes = [one for one in again.stderr.splitlines() if one.startswith("::")]
    assert re.fullmatch(f"::warning title=serve-eval::{told}", notes[0]), again.stderr


@pytest.mark.slow
def test_a_run_that_asks_again_does_not_say_so(tmp_path: Path) -> None:
    how = (*RUN, "--no-reference", "-o", tmp_path / "out")
    serve_eval(*how)
    assert "nothing was asked" not in serve_eval(*how, "--rerun", "all").stdout


def test_every_line_of_a_finished_comparison_says_so(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(SIDE)
    how = ("compare", tmp_path / "a.yaml", tmp_path / "b.yaml", "-o", tmp_path / "out")
    first = serve_eval(*how, "--notify-text", "-")
    assert (first.returncode, "nothing was asked" in first.stdout) == (0, False), first
    again = serve_eval(*how, "-v")
    assert re.search(f"nothing was asked: .* at {TIME}; to ask again, name", again.stdout)
    line = ("--notify-text", "-", "-q")
    quiet = serve_eval(*how, *line, GITHUB_ACTIONS="true")
    told = f"nothing was asked: the last answer came at {TIME}"
    start, *_, notify = quiet.stdout.splitlines()
    assert re.fullmatch(told, start), quiet.stdout
    assert re.match(f"{told}: PASS word_problems", notify), quiet.stdout
    assert re.search(f"{told}: PASS word_problems", (tmp_path / "out/junit.xml").read_text())
    assert re.match(f"{told}: PASS", (tmp_path / "out/summary.md").read_text().replace("\\", ""))
    assert re.match(f"::warning title=serve-eval::{told}", quiet.stderr), quiet.stderr


def test_every_line_of_a_finished_comparison_at_several_loads_says_so(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(SIDE)
    out = tmp_path / "out"
    how = ("compare", tmp_path / "a.yaml", tmp_path / "b.yaml", "-o", out)
    first = serve_eval(*how, "--concurrency", "1,4")
    assert (first.returncode, "nothing was asked" in first.stdout) == (0, False), first
    again = serve_eval(*how, "--concurrency", "1,4", "-v")
    assert re.search(f"warning +nothing was asked: .* at {TIME}; to ask again", again.stdout)
    told = f"nothing was asked: the last answer came at {TIME}"
    line = ("--concurrency", "1,4", "--notify-text", "-", "-q")
    quiet = serve_eval(*how, *line, GITHUB_ACTIONS="true")
    start, *_, notify = quiet.stdout.splitlines()
    assert re.fullmatch(told, start), quiet.stdout
    assert re.match(f"{told}: PASS word_problems", notify), quiet.stdout
    assert len(re.findall(f"{told}: PASS", (out / "junit.xml").read_text())) == 2
    assert re.match(f"{told}: PASS", (out / "summary.md").read_text().replace("\\", ""))
    assert re.match(f"::warning title=serve-eval::{told}", quiet.stderr), quiet.stderr
    grown = serve_eval(*how, "--concurrency", "1,2,4")
    said = rf"at (\d) in flight nothing was asked: the last answer came at {TIME}"
    assert re.findall(said, grown.stdout) == ["1", "4"], grown.stdout


def _write_suite(folder: Path, *names: str) -> Path:
    (folder / "side.yaml").write_text(f"{SIDE}no_reference: true\n")
    runs = ", ".join(f"{{name: {name}, plan: side.yaml}}" for name in names)
    (folder / "s.yaml").write_text(f"name: night\nplans: [{runs}]\n")
    return folder / "s.yaml"


def test_every_line_of_a_finished_suite_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out"
    how = ("run", _write_suite(tmp_path, "one", "two"), "-o", out, "--notify-text", "-")
    first = serve_eval(*how)
    assert "asked" not in first.stdout, first.stdout
    told = f"nothing was asked: the last answer came at {TIME}"
    assert re.search("older +these answers are earlier ones; to ask again", serve_eval(*how).stdout)
    quiet = serve_eval(*how, "-q", GITHUB_ACTIONS="true")
    start, *_, notify = quiet.stdout.splitlines()
    assert re.fullmatch(told, start), quiet.stdout
    assert re.match(f"{told}: NO REFERENCE one/word_problems", notify), quiet.stdout
    junit = (out / "junit.xml").read_text()
    assert len(re.findall(f"message=.{told}: NO REFERENCE", junit)) == 2, junit
    assert re.match(f"{told}: NO REF", (out / "summary.md").read_text().replace("\\", ""))
    assert re.match(f"::warning title=serve-eval::{told}", quiet.stderr), quiet.stderr


def test_a_suite_that_kept_some_runs_says_how_many(tmp_path: Path) -> None:
    out = tmp_path / "out"
    serve_eval("run", _write_suite(tmp_path, "one", "two"), "-o", out)
    how = ("run", _write_suite(tmp_path, "one", "two", "new"), "-o", out, "--notify-text", "-")
    grown = serve_eval(*how, "-q", GITHUB_ACTIONS="true")
    told = f"2 of 3 runs are older: last answer {TIME}"
    start, *_, notify = grown.stdout.splitlines()
    assert re.fullmatch(told, start), grown.stdout
    assert re.match(f"{told}: NO REFERENCE", notify), grown.stdout
    assert re.match(f"{told}: NO REF", (out / "summary.md").read_text().replace("\\", ""))
    junit = (out / "junit.xml").read_text()
    said = re.findall(r"classname=\"(\w+)\".*message=\"(nothing was asked|NO REFERENCE)", junit)
    assert said == [(name, "nothing was asked") for name in ("one", "two")] + [
        ("new", "NO REFERENCE")
    ]
    assert re.match(f"::warning title=serve-eval::{told}", grown.stderr), grown.stderr


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
