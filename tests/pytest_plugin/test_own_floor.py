"""Test that a test without a reference judges its run itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import ROOT, run_pytest
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail, models

TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = "of-no-reference"
    LAUNCHER = {"name": "simulated", "accuracy": 0.7, "seed": 1}
    OPTIONS = {"limit": 50}

    def check(self, floor, **options):
        report = self.evaluate("word_problems", no_reference=True, **options)
        accuracy = report.tasks[0].result.value
        assert accuracy >= floor, str(report)
    def test_above(self): self.check(40.0)
    def test_below(self): self.check(90.0)
    def test_missing(self):
        self.check(0.0, launcher_options={"failure_rate": 0.2}, max_error_rate=1.0)
    def test_verdict(self): self.check(0.0, verdict="classic")
    @pytest.mark.serve_eval("word_problems", no_reference=True)
    def test_marker(self, serve_eval):
        assert serve_eval.evaluate().tasks[0].result.scored == 50
"""


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_a_floor_of_ones_own_is_asserted_where_no_reference_is_wanted(
    tmp_path: Path, strict: bool
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    flags = ("--serve-eval-strict",) if strict else ()
    line = ("--serve-eval-notify", "line.txt", "--serve-eval-output", "runs")
    done = run_pytest(tmp_path, *flags, *line, "-ra", "--tb=line")
    counts = "2 failed, 2 passed" if strict else "1 failed, 2 passed, 1 skipped"
    assert counts in done.stdout.splitlines()[-1], done.stdout
    assert "1 error" in done.stdout.splitlines()[-1]
    assert "ERROR test_it.py::TestIt::test_missing - ERROR word_problems" in done.stdout
    assert "FAILED test_it.py::TestIt::test_below - AssertionError" in done.stdout
    told = (tmp_path / "line.txt").read_text()
    assert told.startswith("FAIL word_problems of-no-reference (test_it.py::"), told
    assert "runs/test_it.py/TestIt/test_below/" in told


def test_a_run_without_a_reference_returns_its_report(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "above or below", "--serve-eval-strict")
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
    assert ">= 90.0" in done.stdout
    line = r"AssertionError: NO REFERENCE word_problems of-no-reference: [\d.]+; 50 asked, .*"
    assert re.search(rf"^E +{line}/test_it.py/TestIt/test_below/\d+_\d+$", done.stdout, re.M)


def test_the_floor_of_the_page_fails_without_reprs(tmp_path: Path) -> None:
    page = (ROOT / "docs/pytest.md").read_text()
    [block] = re.findall(r"^```python\n(def test_floor[\s\S]*?)^```", page, re.MULTILINE)
    simulated = 'no_reference=True, model="m", launcher={"name": "simulated", "accuracy": 0.3}'
    (tmp_path / "test_it.py").write_text(block.replace("no_reference=True", simulated))
    done = run_pytest(tmp_path)
    assert "1 failed" in done.stdout.splitlines()[-1], done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("E ")]
    assert len(told) == 2, done.stdout
    assert told[0].startswith("E       AssertionError: NO REFERENCE word_problems m: "), told
    assert re.fullmatch(r"E       assert [\d.]+ >= 70\.0", told[1]), told


def test_a_green_session_does_not_say_that_there_is_no_reference(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "above", "--serve-eval-notify", "line.txt")
    assert "1 passed" in done.stdout.splitlines()[-1], done.stdout
    told = (tmp_path / "line.txt").read_text()
    assert told.startswith("PASS word_problems of-no-reference (test_it.py::TestIt::test_above)")
    assert "NO REFERENCE" not in told


REFUSING = """
def test_it(serve_eval):
    serve_eval.evaluate("word_problems", limit=100, no_reference=True, model="m")
"""


def test_an_error_advises_with_keywords(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(REFUSING)

    def act(request: HttpRequest) -> Reply:
        return answer("4") if len(request.prompt) % 3 else fail(400, "not this one")

    server = ScriptedServer(act, routes={"/v1/models": models("m")})
    with server.serve_in_thread() as url:
        done = run_pytest(tmp_path, SERVE_EVAL_BASE_URL=url)
    assert "1 error" in done.stdout.splitlines()[-1], done.stdout
    assert "then run the test again. max_error_rate=SHARE allows more." in done.stdout
    assert "--max-error-rate" not in done.stdout
    assert "--set" not in done.stdout
    assert "limits" not in done.stdout
    assert "resume the run" not in done.stdout
