"""Test that a test which asked for a measurement and made none never counts as passed."""

from __future__ import annotations

from pathlib import Path

import pytest
from junitparser import Error, JUnitXml, Skipped

from tests.pytest_plugin.run_pytest import run_pytest

TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

of_nothing = pytest.mark.serve_eval("word_problems", launcher="embedded", model_name="embedded")

@of_nothing
def test_marker_without_fixture(): pass
@of_nothing
def test_fixture_not_called(serve_eval): assert serve_eval
def test_fixture_alone(serve_eval): pass
@pytest.fixture
def evaluator(serve_eval): return serve_eval
def test_fixture_of_a_fixture(evaluator): assert evaluator.evaluate

class TestOfAClass(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_without_parentheses(self): self.evaluate

def test_not_today(serve_eval): pytest.skip("not today")
def test_other(): pass
@pytest.mark.serve_eval(gpus=0)
def test_no_task(): pass
def test_server(serve_eval_server): assert serve_eval_server
"""
SAID = "measured nothing: the test ended without a call of evaluate() or compare()"


@pytest.mark.parametrize("strict", [False, True])
def test_a_test_that_measured_nothing_does_not_pass(tmp_path: Path, strict: bool) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "summary.md").touch()
    given = ("--serve-eval-notify", "line.txt", "--junitxml", "junit.xml", "-ra")
    flags = ("--serve-eval-strict",) if strict else ()
    done = run_pytest(
        tmp_path, *given, *flags, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md"
    )
    assert done.returncode == int(strict), done.stdout + done.stderr
    counts = "3 passed, 1 skipped, 5 errors" if strict else "3 passed, 6 skipped, 5 warnings"
    assert counts in done.stdout, done.stdout
    line = (tmp_path / "line.txt").read_text()
    assert (f"no result; {SAID}; of 7 tests: " in line) is strict, line
    outcome = "ERROR" if strict else "SKIPPED"
    assert ("5 ERROR, 1 PASS, 1 SKIPPED" if strict else "1 PASS, 6 SKIPPED") in line
    summary = (tmp_path / "summary.md").read_text()
    assert f"| **{outcome}** | test\\_it.py::test\\_marker\\_without\\_fixture |" in summary, (
        summary
    )
    kind = Error if strict else Skipped
    cases = next(iter(JUnitXml.fromfile(str(tmp_path / "junit.xml"))))
    ends = {case.name: [one.message for one in case.result if isinstance(one, kind)]
            for case in cases}  # fmt: skip
    unmeasured = [name for name, said in ends.items() if any(SAID in one for one in said)]
    assert len(unmeasured) == 5, ends
    assert ends["test_server"] == ends["test_other"] == ends["test_no_task"] == []


def test_the_warning_names_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "fixture_alone")
    assert f"AccuracyWarning: {SAID}" in done.stdout, done.stdout
    assert f"serve-eval: no accuracy test measured anything: 1 skipped, {SAID}" in done.stdout
