"""Test what commands leave for CI systems, and commands copied out of it."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt

from serve_eval.checks.row import SentRequest, curl
from serve_eval.plan.command_line import write_take_command
from serve_eval.report.ci import list_annotations, write_code_block, write_junit, write_markdown
from serve_eval.report.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.document import make_ci_result
from serve_eval.report.run.conclusions import choose_state
from serve_eval.report.run.document import make_run_document
from serve_eval.report.task_line import compute_least_drop
from serve_eval.report.text import clean
from serve_eval.schema import Connection, Metric, Plan, Spec, VerdictOutcome
from serve_eval.shell_words import join_words, quote_argument, quote_path, quote_word
from serve_eval.stats.planning import FLIP_RATE, compute_fail_power, compute_paired_power
from serve_eval.storage.report_file import read_report
from tests.cli.command import serve_eval
from tests.cli.command import serve_eval as command
from tests.evidence.path_proof.deployments import Deployment, PathFault, run
from tests.report.summary.made import PAIRED, VERDICT

HOSTILE = (
    "<script>alert(1)</script> | **bold** `code` [x](http://e) \x1b[31m\x00\ufffe\n"
    "::error::made up \u202e \ud800 ]]> & \r\n## heading"
)


def _result(state, text):
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
def test_any_text_stays_a_text(state):
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
def test_only_a_regression_is_a_failure(outcome, reasons, state):
    assert choose_state(outcome, reasons) is state


def test_a_run_leaves_files_that_a_consumer_reads_and_tells_github(tmp_path):
    summary, out = tmp_path / "step.md", tmp_path / "out"
    summary.write_text("### before\n")
    done = serve_eval(
        "run --launcher simulated --set launcher.accuracy=0.1 --set word_problems.num_samples=60"
        f" --tasks word_problems --model embedded -o {out}",
        GITHUB_STEP_SUMMARY=str(summary),
        GITHUB_ACTIONS="true",
        exits=1,
    )
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


def test_a_suite_has_a_junit_suite_for_each_run(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("""
defaults: {launcher: {simulated: {accuracy: 0.1}}}
plans:
  - {name: red, model: embedded, tasks: [{word_problems: {num_samples: 60}}]}
  - {name: lost, model: unknown, tasks: [word_problems]}
waivers:
  - {match: {name: red}, reason: known, until: 2999-01-01}
""")
    serve_eval(f"run {file} -o {tmp_path}/out")
    read = JUnitXml.fromfile(str(tmp_path / "out/junit.xml"))
    cases = {suite.name: next(iter(suite)) for suite in read}
    assert isinstance(cases["red"].result[0], Skipped), "waived"
    assert isinstance(cases["lost"].result[0], Error)
    assert "known" in (tmp_path / "out/summary.md").read_text()


def test_the_recipes_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[3] / "docs/ci.md").read_text()
    github, gitlab = (
        yaml.safe_load(block)
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if block.startswith(("on:", "accuracy:"))
    )
    jenkins = re.findall(r"sh '(.*?)'", page)
    steps = [step["run"] for step in github["jobs"]["accuracy"]["steps"] if "run" in step]
    commands = {*steps, *gitlab["accuracy"]["script"], *jenkins}
    # GitHub shows annotations and the summary, so that only the others need the JUnit file.
    plain, command = sorted(one for one in commands if one.startswith("serve-eval"))
    assert command == f"{plain} --junit junit.xml"
    plan = {"model": "m", "launcher": "simulated", "tasks": [{"word_problems": {"num_samples": 9}}]}
    (tmp_path / "plan.yaml").write_text(json.dumps(plan | {"no_reference": True}))
    serve_eval(*command.split()[1:], exits=3)
    [junit] = re.findall(r"junit '(.*?)'", page)
    assert gitlab["accuracy"]["artifacts"]["reports"]["junit"] == junit
    assert JUnitXml.fromfile(str(tmp_path / junit)).tests == 1


def test_a_path_that_is_not_proven_is_an_error_of_its_own(tmp_path):
    folder = tmp_path / "run"
    run(Deployment(PathFault.BYPASS), folder, expect=("kv_transfer", "speculation"))
    [suite] = ElementTree.fromstring(
        write_junit(make_ci_result(make_run_document(read_report(folder), folder)))
    )
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("3", "2", "0")
    task, transfer, speculation = suite
    assert (task.get("classname"), task.get("name")) == ("task", "word_problems")
    properties, error = task
    assert (properties.tag, error.tag) == ("properties", "error")
    assert str(error.get("message")).startswith("INCONCLUSIVE word_problems m: ")
    assert "path not proven: kv_transfer: " in str(error.get("message"))
    assert (transfer.get("classname"), transfer.get("name")) == ("path", "kv_transfer")
    assert str(transfer[0].get("message")).startswith(
        "path not proven: kv_transfer: context servers had 0 of 24 requests"
    )
    assert [one.tag for one in speculation] == ["system-out"]
    # Judging again writes the same file, and a flag adds to the saved expectations.
    file = tmp_path / "again.xml"
    done = command("judge", str(folder), "--junit", str(file), "--expect", "deterministic")
    assert done.returncode == 3
    [again] = ElementTree.parse(file).getroot()
    assert [one.get("name") for one in again] == [
        "word_problems",
        "kv_transfer",
        "speculation",
        "deterministic",
    ]
    missing = command("judge", str(folder), "--junit", str(tmp_path / "no" / "file.xml"))
    assert missing.returncode == 2


@pytest.mark.parametrize(("prompts", "margin"), [(121, 10.6), (500, 5.2), (500, 2.0)])
def test_the_paired_rule_fails_its_least_drop_in_80_of_100_runs(prompts, margin):
    """A drop that is only proven passes with a warning, so it is not detected."""
    pairs = replace(PAIRED, pairs=prompts, margin=margin)
    least = compute_least_drop(replace(VERDICT, rule="paired", paired=pairs), Metric())
    assert least is not None
    failed = compute_fail_power(least / 100.0, prompts, FLIP_RATE, 0.05, margin / 100.0)
    assert failed == pytest.approx(0.8, abs=0.002)
    assert compute_paired_power(least / 100.0, prompts, FLIP_RATE, 0.05) >= failed


HOSTILE_COPIED_COMMANDS = (
    "a`b", "```\nrm -rf x\n```", "~~~", "$(touch owned)", "`touch owned`", "${HOME}", "it's", 'a"b',
    "a;b&c|d>e<f", "\x1b[31mred\x1b[0m", "a\rb", "line\nline\n", "\n", "\t tab ", "  two  blanks ",
    "-x", "--model", "", "~", "*", "a b", "!history", "\\", "é漢字🙂", "\u202egnp.exe", "\u2028",
    "\x7f\x85", "# not a comment", "a=b", "[x](http://e)", "<b>", "\u200b", "%s%d\\033", "'`'`'",
)  # fmt: skip
"""Names as a hostile model or folder may have them."""
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=20)
END = "end of call"
STUB = f"""#!/bin/sh
printf '%s\\0' "$@" '{END}'
"""


def _run(shell, folder):
    """Return the words of each `serve-eval` that sh runs; it may run nothing else."""
    stub = folder / "serve-eval"
    if not stub.exists():
        stub.write_text(STUB)
        stub.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", shell],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"},
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert sorted(path.name for path in folder.iterdir()) == ["serve-eval"]
    *calls, rest = done.stdout.split(f"{END}\0".encode())
    assert rest == b""
    return [call.split(b"\0")[:-1] for call in calls]


def _copy(markdown):
    """Return the only block of code of a Markdown text, as a reader copies it."""
    [block] = [one for one in MarkdownIt("commonmark").parse(markdown) if one.type == "fence"]
    return block.content


def _summarise(commands):
    case = CiCase(group="g", name="n", state=CiState.PASSED)
    suite = CiSuite(name="s", cases=[case])
    table = CiTable(columns=(), rows=())
    return write_markdown(
        CiResult(title="t", outcome="PASS", suites=[suite], table=table, commands=commands)
    )


def test_hostile_words_survive_the_summary_and_sh(tmp_path):
    commands = [
        join_words(["serve-eval", "run", "--model", text, text]) for text in HOSTILE_COPIED_COMMANDS
    ]
    found = _run(_copy(_summarise(commands)), tmp_path)
    assert found == [
        [b"run", b"--model", text.encode(), text.encode()] for text in HOSTILE_COPIED_COMMANDS
    ]


@settings(max_examples=12)
@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_any_words_survive_the_summary_and_sh(tmp_path_factory, words):
    copied = _copy(_summarise([join_words(["serve-eval", *words])]))
    [found] = _run(copied, tmp_path_factory.mktemp("stub"))
    assert found == [word.encode() for word in words]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_a_terminal_removes_nothing_of_a_command_and_no_line_of_it_ends_its_block(
    words,
):
    command = join_words(words)
    assert clean(command) == command
    assert _copy("\n".join(write_code_block([command, "second"]))) == f"{command}\nsecond\n"


def test_the_commands_of_plans_survive(tmp_path):
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="gsm8k"),))
    commands = [
        write_take_command(replace(plan, model=text), ["gsm8k"]) for text in HOSTILE_COPIED_COMMANDS
    ]
    found = _run(_copy(_summarise(commands)), tmp_path)
    models = [words[words.index(b"--model") + 1] for words in found]
    assert models == [text.encode() for text in HOSTILE_COPIED_COMMANDS]


def test_curl_lines_survive(tmp_path):
    lines = [
        curl(
            SentRequest(url="http://h/v1/x", body={"model": text}),
            Connection(headers={"X": text}),
            (),
        )
        for text in HOSTILE_COPIED_COMMANDS
    ]
    assert list(map(clean, lines)) == lines
    block = _copy(_summarise(lines))
    found = _run(f'curl() {{ serve-eval "$@"; }}\n{block}', tmp_path)
    for text, words in zip(HOSTILE_COPIED_COMMANDS, found, strict=True):
        assert json.loads(words[-1]) == {"model": text}
        expanded = text.replace("${HOME}", os.environ["HOME"])  # a variable stays one
        assert f"X: {expanded}".encode() in words


def test_no_path_or_sample_is_taken_for_an_option():
    assert quote_path("-rf") == "./-rf"
    assert quote_path(Path("a b")) == "'a b'"
    assert quote_argument("-1") == "-- -1"
    assert quote_word("plain/word:8000") == "plain/word:8000"
    assert quote_word("a\x00\ud800b") == "ab"
