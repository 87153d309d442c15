"""Test that nothing is green that measured nothing, or that nothing could have failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from junitparser import Error, JUnitXml

from serve_eval.pytest_plugin.options import NO_ADDRESS
from tests.pytest_plugin.run_pytest import run_pytest

WITHOUT = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    @pytest.mark.parametrize("n", [1, 2])
    def test_words(self, n): self.evaluate("word_problems")
def test_endpoint(serve_eval_endpoint): raise AssertionError
def test_other(): pass
"""
SMALL = """
from serve_eval.pytest_plugin import AccuracyTests

class TestSmall(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_one(self): self.evaluate("word_problems", limit=1)
    def test_forty(self): self.evaluate("word_problems", limit=40, verdict="classic")
    def test_paired(self): self.evaluate("word_problems", limit=40, verdict="paired")
"""
NOTHING = "serve-eval: no accuracy test measured anything: 3 skipped, no address"


@pytest.mark.parametrize("how", ["flag", "ini"])
def test_under_strict_a_test_without_an_address_is_an_error(tmp_path: Path, how: str) -> None:
    (tmp_path / "test_it.py").write_text(WITHOUT)
    ini = "serve_eval_strict = true\n" if how == "ini" else ""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}")
    flags = ("--serve-eval-strict",) if how == "flag" else ()
    done = run_pytest(
        tmp_path, *flags, "--junitxml", "j.xml", SERVE_EVAL_BASE_URL="", OPENAI_BASE_URL=""
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed, 3 errors" in done.stdout.splitlines()[-1]
    assert NOTHING not in done.stdout
    cases = [case for suite in JUnitXml.fromfile(str(tmp_path / "j.xml")) for case in suite]
    errors = [one for case in cases for one in case.result if isinstance(one, Error)]
    assert len(errors) == 3
    assert all(NO_ADDRESS in one.message for one in errors)


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow), ("-q", "--no-summary")]
)
def test_a_session_that_measured_nothing_says_so(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(WITHOUT)
    line = ("--serve-eval-notify", "line.txt")
    done = run_pytest(tmp_path, *flags, *line, SERVE_EVAL_BASE_URL="", OPENAI_BASE_URL="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count(NOTHING) == 1, done.stdout
    told = (tmp_path / "line.txt").read_text()
    assert told.startswith("no accuracy test measured anything: SKIPPED test_it.py::")
    assert "of 3 tests: 3 SKIPPED" in told
    done = run_pytest(tmp_path, *flags, "-k", "other")
    assert "serve-eval:" not in done.stdout


@pytest.mark.slow
def test_a_pass_that_nothing_could_fail_does_not_decide_and_the_power_is_a_property(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(SMALL)
    done = run_pytest(tmp_path, "--serve-eval-strict", "-ra", "--junitxml", "j.xml")
    assert "1 failed, 2 passed" in done.stdout.splitlines()[-1], done.stdout
    assert "does not decide: word_problems: no value could FAIL: ask more samples" in done.stdout
    assert "FAILED test_it.py::TestSmall::test_one - does not decide" in done.stdout
    assert done.stdout.count(" asked    1 sample: 0 failed") == 1  # the summary stands once
    detects = {}
    for case in next(iter(JUnitXml.fromfile(str(tmp_path / "j.xml")))):
        figures = {one.get("name"): one.get("value") for one in case._elem.iter("property")}
        detects[case.name] = float(figures["word_problems.detects"])
    # the classic formula: (1.645 + .842) * sqrt(2 * 50^2 / n)
    assert detects["test_one"] == pytest.approx(175.8, abs=0.1)
    assert detects["test_forty"] == pytest.approx(27.8, abs=0.1)
    assert 5.0 < detects["test_paired"] < detects["test_forty"]
    done = run_pytest(tmp_path, "-k", "one")
    assert "1 passed" in done.stdout.splitlines()[-1], done.stdout


UNDECIDED = """
from serve_eval.pytest_plugin import AccuracyTests

class TestTwo(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 60}
    def test_a_sound(self): self.evaluate("word_problems")
    def test_b_damaged(self):
        self.evaluate("word_problems", launcher_options={"damage": "int3"})
"""
FILES = ("--serve-eval-notify", "line.txt", "--serve-eval-strict")


@pytest.mark.slow
def test_a_regression_speaks_before_a_pass_that_does_not_decide(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(UNDECIDED)
    given = (*FILES, "--serve-eval-max-detects", "10")
    for chosen, outcome, begins in (
        ("sound or damaged", "FAIL", "FAIL word_problems embedded (test_it.py::TestTwo::test_b"),
        ("sound", "INCONCLUSIVE", "does not decide: PASS word_problems embedded (test_it.py::T"),
    ):
        (tmp_path / "summary.md").write_text("")
        done = run_pytest(
            tmp_path, *given, "-k", chosen, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md"
        )
        line = (tmp_path / "line.txt").read_text()
        assert line.startswith(begins), line
        summary = (tmp_path / "summary.md").read_text()
        assert summary.startswith(begins[:19]), summary
        assert f"### {outcome}: pytest" in summary
        assert "::error title=serve-eval%3A test_it.py%3A%3ATestTwo%3A%3Atest_a_sound::does" in (
            done.stdout
        ), done.stdout
        assert "above max_detects = 10" in line or outcome == "FAIL"


def test_under_strict_a_session_that_measured_nothing_is_not_green(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from serve_eval.pytest_plugin import AccuracyTests\n"
        "class TestLarge(AccuracyTests):\n"
        "    MODEL_NAME, LAUNCHER = 'm', 'trtllm'\n"
        "    OPTIONS = {'launcher_options': {'tp': 64}}\n"
        "    def test_words(self): self.evaluate('word_problems')\n"
    )
    for strict in (False, True):
        done = run_pytest(tmp_path, *(FILES if strict else ()))
        assert "1 skipped" in done.stdout, done.stdout
        why = "serve-eval: no accuracy test measured anything: 1 skipped, launcher trtllm needs 64"
        assert why in done.stdout
        assert done.returncode == int(strict), done.stdout
        assert ("error: --serve-eval-strict: a session that" in done.stdout) is strict
