"""The result of an export: its files, their rows, and what was left out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from junitparser import JUnitXml

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return a run of which 5 of 20 answers are lost."""
    out = tmp_path_factory.mktemp("runs") / "out"
    asked = ("--launcher", "simulated", "-m", "org/m", "-t", "word_problems", "--limit", "20")
    done = serve_eval("run", *asked, "--no-reference", "-o", out)
    assert done.returncode == 3, done.stderr
    for folder in ("samples", "scores"):
        file = out / folder / "word_problems.jsonl"
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:15]))
    return out


def test_the_files_are_listed_with_their_rows_and_what_was_left_out(
    run: Path, tmp_path: Path
) -> None:
    done = serve_eval(
        "runs", "export", run, "-o", tmp_path, "--junit", tmp_path / "junit.xml", COLUMNS="80"
    )
    assert done.returncode == 0, done.stderr
    first, *rows = done.stdout.splitlines()
    assert first == f" WRITTEN   lm-eval  15 rows in 2 files below {tmp_path / 'org__m'}"
    left = "word_problems: 15 of 20 samples have a score; the others are not exported"
    assert f" warning  {left}" in rows
    [suite] = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert [(case.name, case.result) for case in suite] == [("lm-eval", [])]
    told = json.loads(serve_eval("runs", "export", run, "-o", tmp_path, "--json").stdout)
    files = {Path(one["file"]): one["rows"] for one in told["result"]["files"]}
    assert sorted(files) == sorted((tmp_path / "org__m").iterdir())
    for file, number in files.items():
        assert file.name in done.stdout
        assert number == (len(file.read_text().splitlines()) if "samples" in file.name else None)
    assert told["warnings"] == [left]


def test_a_table_on_standard_output_is_nothing_but_the_table(run: Path, tmp_path: Path) -> None:
    printed = serve_eval(
        "runs", "export", run, "--format", "csv", "--notify-text", tmp_path / "line"
    ).stdout
    [row] = csv.DictReader(printed.splitlines())
    assert row["model"] == "org/m"
    assert (tmp_path / "line").read_text().startswith("WRITTEN csv: 1 row; ")
    told = json.loads(serve_eval("runs", "export", run, "--format", "csv", "--json").stdout)
    assert told["result"]["rows"] == [row]
    assert told["outcome"] == "WRITTEN"


def test_biochatters_files_have_their_rows(run: Path, tmp_path: Path) -> None:
    done = serve_eval("runs", "export", run, "--format", "biochatter", "-o", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    for one in json.loads(done.stdout)["result"]["files"]:
        with Path(one["file"]).open(newline="") as file:
            assert len(list(csv.DictReader(file))) == one["rows"], one
