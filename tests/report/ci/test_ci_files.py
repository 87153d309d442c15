"""Test what commands leave for CI systems: junit.xml, summary.md, and what GitHub shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt

from serve_eval.report.ci import list_annotations, write_junit, write_markdown
from serve_eval.report.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.run.conclusions import choose_state
from serve_eval.schema import VerdictOutcome
from serve_eval.shell_words import join_words
from tests.cli.command import serve_eval

HOSTILE = (
    "<script>alert(1)</script> | **bold** `code` [x](http://e) \x1b[31m\x00\ufffe\n"
    "::error::made up \u202e \ud800 ]]> & \r\n## heading"
)


def _result(state: CiState, text: str) -> CiResult:
    case = CiCase(
        group=text, name=text, state=state, message=text, details=[text], properties={text: text}
    )
    return CiResult(
        title=text,
        outcome="FAIL",
        suites=[CiSuite(name=text, cases=[case], host=text)],
        table=CiTable(columns=("verdict", text), rows=[["FAIL", text]]),
        notes=[text],
        commands=[join_words(["serve-eval", "show", text])],
    )


@pytest.mark.parametrize("state", CiState)
def test_any_text_stays_a_text(state: CiState) -> None:
    result = _result(state, HOSTILE)
    xml = write_junit(result).encode(errors="backslashreplace")
    [suite] = ElementTree.fromstring(xml)
    assert len(suite) == 1
    summary = write_markdown(result)
    assert "<script>" not in summary.partition("```")[0]
    assert "\x1b" not in summary
    kinds = [one.type for one in MarkdownIt("commonmark").enable("table").parse(summary)]
    assert (kinds.count("heading_open"), kinds.count("fence")) == (1, 1)
    assert "html_block" not in kinds
    assert [line.count(" | ") for line in summary.splitlines() if line.startswith("| ")] == [1] * 3
    lines = list(list_annotations(result))
    assert len(lines) == 2 * (state is not CiState.PASSED), "the line of the result, and its case"
    assert all(line.startswith(("::error title=", "::warning title=")) for line in lines)
    assert all("\n" not in line and "\r" not in line for line in lines)


@pytest.mark.parametrize(
    ("outcome", "reasons", "state"),
    [
        (VerdictOutcome.PASS, (), CiState.PASSED),
        (VerdictOutcome.FAIL, ("below_threshold",), CiState.FAILURE),
        (VerdictOutcome.ERROR, (), CiState.ERROR),
        (VerdictOutcome.UNSUPPORTED, (), CiState.SKIPPED),
        (VerdictOutcome.NO_REFERENCE, (), CiState.SKIPPED),
        (VerdictOutcome.INCONCLUSIVE, ("margin_not_excluded",), CiState.SKIPPED),
        (VerdictOutcome.INCONCLUSIVE, ("too_many_missing: 9 of 60",), CiState.ERROR),
        (VerdictOutcome.INCONCLUSIVE, ("missing_results: 1 of 50 pairs",), CiState.ERROR),
        (VerdictOutcome.INCONCLUSIVE, ("path not proven: kv_transfer",), CiState.ERROR),
    ],
)
def test_only_a_regression_is_a_failure(
    outcome: VerdictOutcome, reasons: tuple[str, ...], state: CiState
) -> None:
    assert choose_state(outcome, reasons) is state


def test_a_run_leaves_files_that_a_consumer_reads_and_tells_github(tmp_path: Path) -> None:
    summary, out = tmp_path / "step.md", tmp_path / "out"
    summary.write_text("### before\n")
    done = serve_eval(
        "run", "--launcher", "simulated", "--set", "launcher.accuracy=0.1",
        "--set", "word_problems.num_samples=60", "--tasks", "word_problems", "--model", "embedded",
        "-o", out, GITHUB_STEP_SUMMARY=str(summary), GITHUB_ACTIONS="true",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    read = JUnitXml.fromfile(str(out / "junit.xml"))
    assert (read.tests, read.failures, read.errors, read.skipped) == (1, 1, 0, 0)
    [suite] = read
    [case] = suite
    assert (case.classname, case.name) == ("task", "word_problems")
    [found] = case.result
    assert isinstance(found, Failure)
    line = str(found.message)
    assert line.startswith("FAIL word_problems embedded: ")
    assert "60 asked, 0 failed, 0 repaired; " in line
    assert line.endswith(f"; {out}")
    assert str(found.text).startswith(line)
    properties = {one.get("name"): one.get("value") for one in case._elem.iter("property")}
    assert (properties["samples"], properties["rule"]) == ("60", "paired")
    text = (out / "summary.md").read_text()
    assert text.startswith(f"{line}\n\n### FAIL: serve-eval run of embedded at http")
    assert "| **FAIL** | word\\_problems |" in text
    flaky = "0 requests repeated after a failure; 0 samples without an answer; 0 samples repaired"
    assert f"\n* flaky: {flaky}\n" in text
    assert summary.read_text() == f"### before\n{text}\n"
    assert f"\n::error title=serve-eval%3A word_problems::{line}\n" in done.stderr
    assert "::" not in done.stdout


def test_a_suite_has_a_junit_suite_for_each_run(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("""
defaults: {launcher: {simulated: {accuracy: 0.1}}}
plans:
  - {name: red, model: embedded, tasks: [{word_problems: {num_samples: 60}}]}
  - {name: lost, model: unknown, tasks: [word_problems]}
waivers:
  - {match: {name: red}, reason: known, until: 2999-01-01}
""")
    serve_eval("run", file, "-o", tmp_path / "out")
    read = JUnitXml.fromfile(str(tmp_path / "out/junit.xml"))
    cases = {suite.name: next(iter(suite)) for suite in read}
    assert isinstance(cases["red"].result[0], Skipped), "waived"
    assert isinstance(cases["lost"].result[0], Error)
    assert "known" in (tmp_path / "out/summary.md").read_text()


def test_the_recipes_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[3] / "docs/ci.md").read_text()
    github, gitlab = (
        yaml.safe_load(block)
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if block.startswith(("jobs:", "accuracy:"))
    )
    jenkins = re.findall(r"sh '(.*?)'", page)
    steps = [step["run"] for step in github["jobs"]["accuracy"]["steps"] if "run" in step]
    commands = {*steps, *gitlab["accuracy"]["script"], *jenkins}
    [command] = [one for one in commands if one.startswith("serve-eval")]
    plan = {"model": "m", "launcher": "simulated", "tasks": [{"word_problems": {"num_samples": 9}}]}
    (tmp_path / "plan.yaml").write_text(json.dumps(plan | {"no_reference": True}))
    done = serve_eval(*command.split()[1:])
    assert done.returncode == 3, done.stderr
    [junit] = re.findall(r"junit '(.*?)'", page)
    assert gitlab["accuracy"]["artifacts"]["reports"]["junit"] == junit
    assert JUnitXml.fromfile(str(tmp_path / junit)).tests == 1
