"""Test that a rehearsed test says so first, and passes and fails nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from serve_eval.schema import REHEARSED
from tests.pytest_plugin.run_pytest import run_pytest

TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = "m"
    LAUNCHER = "rehearsal"
    OPTIONS = {"limit": 10}

    def check(self, floor):
        report = self.evaluate("word_problems", no_reference=True)
        with open("text", "a") as file: print(report, file=file)
        assert report.tasks[0].result.value >= floor, "too low"
    def test_above(self): self.check(10)
    def test_below(self): self.check(101)
    def test_no_reference(self): self.evaluate("word_problems")
    def test_typo(self): self.evaluate("word_problems", no_reference=True).no_such
    def test_wrong(self): self.evaluate("word_problems", launcher_options={"of": "vllm"})
    def test_own_requests(self, serve_eval_endpoint): assert serve_eval_endpoint.base_url
"""
FILES = ("--serve-eval-notify", "line.txt", "--junitxml", "junit.xml", "-rA")


def _run(folder: Path, *arguments: str, tests: str = TESTS) -> tuple[str, dict[str, str]]:
    """Return what pytest printed, and each test's element and message in the JUnit file."""
    (folder / "test_it.py").write_text(tests)
    (folder / "summary.md").write_text("")
    done = run_pytest(
        folder, *FILES, *arguments, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md"
    )
    kinds = {Error: "error", Failure: "failure", Skipped: "skipped"}
    ends = {
        case.name: "; ".join(f"{kinds[type(one)]} {one.message}" for one in case.result).replace(
            'failed on setup with "', ""
        )
        for case in next(iter(JUnitXml.fromfile(str(folder / "junit.xml"))))
    }
    return done.stdout + done.stderr, ends


def test_nothing_that_is_rehearsed_passes_or_fails_by_its_answers(tmp_path: Path) -> None:
    printed, ends = _run(tmp_path)
    assert "1 failed, 4 skipped" in printed, printed
    for name in ("test_above", "test_below", "test_no_reference"):
        assert ends[name].startswith(f"skipped {REHEARSED}: NO REFERENCE word_problems m "), ends
    assert ends["test_below"].endswith("; withheld: AssertionError: too low"), ends
    assert ends["test_own_requests"] == f"skipped {REHEARSED}"
    assert ends["test_typo"].startswith(f"failure {REHEARSED}: AttributeError"), ends
    assert ends["test_wrong"].startswith(f"error {REHEARSED}: PlanError: "), ends
    texts = (tmp_path / "text").read_text().splitlines()
    assert len(texts) == 2
    assert all(one.startswith(f"{REHEARSED}: NO REFERENCE word_problems m: ") for one in texts)
    line = (tmp_path / "line.txt").read_text()
    assert line.startswith(f"{REHEARSED}: FAIL "), line
    assert "of 6 tests: 1 FAIL, 1 ERROR, 4 SKIPPED" in line
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith(REHEARSED), summary
    assert "PASS" not in summary
    notes = [one for one in printed.splitlines() if one.startswith("::")]
    assert notes[0] == f"::warning title=serve-eval::{REHEARSED}"
    assert all(REHEARSED in one for one in notes), notes


def test_a_rehearsal_that_was_left_in_a_test_is_red_under_strict(tmp_path: Path) -> None:
    printed, ends = _run(tmp_path, "--serve-eval-strict", "-k", "above")
    assert "1 failed" in printed.splitlines()[-1], printed
    assert ends["test_above"].startswith(f"failure {REHEARSED}: NO REFERENCE word_problems m ")
    assert (tmp_path / "line.txt").read_text().startswith(f"{REHEARSED}: NO REFERENCE ")


MOVED = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestMoved(AccuracyTests):
    MODEL_NAME = "m"
    MODEL_PATH = "/models/absent"
    LAUNCHER = "trtllm"
    OPTIONS = {"limit": 10, OPTIONS}

    @pytest.mark.serve_eval(gpus=4)
    def test_four(self):
        report = self.evaluate("word_problems", launcher_options={"tp": 4})
        assert report.plan.launcher.options["options"] == {"model": "/models/absent", "tp": 4}
    def test_wrong_key(self):
        self.evaluate("word_problems", launcher_options={"config": {"no_such_key": 1}})

class TestDisaggregated(TestMoved):
    LAUNCHER = {"name": "trtllm_disaggregated"}
    def test_four(self):
        self.evaluate("word_problems", launcher_options={"generation_servers": {"tp": 2}})
    def test_wrong_key(self): pytest.skip("once is enough")

class TestElsewhere(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {OPTIONS}
    def test_elsewhere(self): self.evaluate("word_problems")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flag", "option"])
def test_a_moved_class_is_rehearsed_with_its_own_launcher(tmp_path: Path, how: str) -> None:
    option = '"rehearse": True' if how == "option" else ""
    flags = ("--serve-eval-rehearse", "--serve-eval-strict") if how == "flag" else ()
    tests = MOVED.replace("OPTIONS}", f"{option}}}")
    printed, ends = _run(tmp_path, *flags, tests=tests)
    counts = "4 skipped, 1 error" if how == "flag" else "3 skipped, 2 errors"
    assert counts in printed.splitlines()[-1], printed
    assert printed.count(f"SKIPPED [1] test_it.py:11: {REHEARSED}: ") == 1, printed
    assert ends["test_four"].startswith(f"skipped {REHEARSED}: NO REFERENCE word_problems m ")
    assert "unknown key no_such_key" in printed
    end = "skipped" if how == "flag" else "error"
    why = "the launcher embedded cannot be rehearsed: it needs no GPU"
    named = "--serve-eval-rehearse" if how == "flag" else "PlanError: rehearse=True"
    assert ends["test_elsewhere"].startswith(f"{end} {named}: {why}"), ends
