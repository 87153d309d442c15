"""A note of a table holds one sentence, not a log; a suite tells each warning of its runs once."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from serve_eval.report.results_table import ResultCell
from serve_eval.schema import Metric, SuiteReport, SuiteRunReport, VerdictOutcome
from serve_eval.workflows.collect.document import CollectedRow, write_csv
from serve_eval.workflows.suite.document import list_run_warnings
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return a suite with a server that never starts, one that ends, and three damaged ones."""
    top = tmp_path_factory.mktemp("plain")
    made = serve_eval(
        "run", "--launcher", "simulated", "-m", "org/m", "-t", "word_problems", "--no-reference",
        "--set=word_problems.num_samples=40", "-o", top / "first",
    )  # fmt: skip
    assert made.returncode == 3, made.stderr
    serve_eval("references", "register", top / "first", "--references-dir", top / "refs")
    (top / "suite.yaml").write_text(
        f"defaults: {{model: org/m, references_dir: {top / 'refs'}, launcher: simulated,"
        " tasks: [{word_problems: {num_samples: 40}}]}\nplans:\n  - {name: bf16}\n"
        "  - {name: a, launcher: {name: simulated, damage: 0.1}}\n"
        "  - {name: b, launcher: {name: simulated, damage: 0.2}}\n"
        "  - {name: dies, launcher: {name: simulated, crash_after: 20}}\n"
        f"  - {{name: nostart, launcher: {{name: llama_cpp, command: 'false'}}}}\n"
    )
    serve_eval("run", top / "suite.yaml", "-o", top / "out")
    return top / "out"


def _export(suite: Path, name: str) -> str:
    done = serve_eval("runs", "export", suite, "--format", name, COLUMNS="300")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["latex", "svg"])
def test_a_paper_says_how_a_server_failed(name: str, suite: Path) -> None:
    text = " ".join(_export(suite, name).replace("\\", "").split())
    assert "no value: ERROR: the server did not start" in text
    assert "no value: ERROR: the server ended after " in text
    assert " of 40 answers" in text
    assert "ERROR: embedded" not in text


def test_a_note_of_a_text_has_one_line_and_the_number_of_answers(suite: Path) -> None:
    lines = _export(suite, "table").splitlines()
    [note] = [line for line in lines if line.startswith("* dies: ")]
    assert note.endswith(" of 40 answers)")
    assert "the server ended with exit code" in note
    assert not any("crashing after" in line for line in lines)


@pytest.mark.parametrize("file", ["summary.md", "report.html"])
def test_each_report_of_a_suite_names_the_runs_launched_otherwise(file: str, suite: Path) -> None:
    text = (suite / file).read_text().replace("\\", "")
    said = "launched otherwise: a (launcher simulated, damage 0.1), b (launcher simulated, damage"
    assert text.count(said) == 1
    assert "this run is at" not in text


def test_warnings_of_several_runs_name_them() -> None:
    def run(name: str, *warnings: str) -> SuiteRunReport:
        return SuiteRunReport(
            name=name, attributes={}, folder=name, kept=False, error=None, warnings=warnings
        )

    at = "the reference was taken at launcher x; this run is at launcher x, damage "
    runs = (run("a", f"t: {at}1", f"u: {at}1"), run("b", "slow", f"t: {at}2"), run("c", "slow"))
    report = SuiteReport(
        schema_version=1, name="s", verdict="PASS", exit_code=0, alpha=0.05, runs=runs, rows=(),
        waivers=(), started_at="", wall_s=0.0,
    )  # fmt: skip
    assert list(list_run_warnings(report)) == [
        "the reference was taken at launcher x; launched otherwise: a (launcher x, damage 1),"
        " b (launcher x, damage 2)",
        "b, c: slow",
    ]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("embedded: /nowhere has no file", "ERROR"),
        ("the endpoint is gone: http://127.0.0.1:9", "ERROR: the endpoint is gone"),
        ("it ended\n  a line of a log\n  another", "ERROR: it ended"),
    ],
)
def test_a_reason_is_not_cut_to_a_bare_word(reason: str, said: str) -> None:
    cell = ResultCell(
        value=None, interval=None, outcome=VerdictOutcome.ERROR, scored=0, planned=9, reason=reason
    )
    assert list(cell.explain(Metric(), plain=True)) == [f"no value: {said}"]


def test_dust_of_floats_is_no_figure_and_a_small_p_is_one() -> None:
    row = CollectedRow(source="a", kind="run", value=5.2e-16, low=-3e-17, p=1.5e-14)
    [read] = csv.DictReader(io.StringIO(write_csv([row])))
    assert (read["value"], read["low"], read["p"]) == ("0", "0", "1.5e-14")


def test_a_table_as_csv_has_no_dust(suite: Path) -> None:
    for row in csv.DictReader(io.StringIO(_export(suite, "csv"), newline="")):
        for name in ("value", "low", "difference", "difference low", "difference high"):
            told = row[f"word_problems {name}"]
            assert "e-" not in told
