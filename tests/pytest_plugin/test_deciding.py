"""Test that a pass of a run that detects no drop which matters does not decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import run_pytest

TESTS = """
from serve_eval.pytest_plugin import AccuracyTests

class TestSmall(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_three(self): self.evaluate("word_problems", limit=3)
    def test_paired(self): self.evaluate("word_problems", limit=3, verdict="paired")
    def test_forty(self): self.evaluate("word_problems", limit=40, verdict="classic")
"""
BLIND = "does not decide: word_problems: detects only drops of 101.5 points or more, and"


def test_a_sample_that_detects_no_possible_drop_does_not_decide(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "--serve-eval-strict", "-ra")
    assert "2 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
    assert BLIND in done.stdout
    assert "INCONCLUSIVE word_problems embedded: 100.0 against 100.0" in done.stdout
    assert "FAILED test_it.py::TestSmall::test_three - does not decide" in done.stdout


@pytest.mark.parametrize(("points", "counts"), [("27", "1 failed"), ("28", "1 passed")])
def test_the_largest_drop_that_may_go_unseen_is_an_option(
    tmp_path: Path, points: str, counts: str
) -> None:
    """The classic rule detects drops of 27.8 points with 40 samples."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nserve_eval_max_detects = {points}\n")
    done = run_pytest(tmp_path, "--serve-eval-strict", "-k", "forty")
    assert counts in done.stdout.splitlines()[-1], done.stdout
    assert ("above max_detects = 27" in done.stdout) is (points == "27")


@pytest.mark.parametrize("points", ["few", "-1", "inf"])
def test_points_that_are_none_are_a_usage_error(tmp_path: Path, points: str) -> None:
    done = run_pytest(tmp_path, f"--serve-eval-max-detects={points}")
    assert done.returncode == 4
    assert f"serve_eval_max_detects: {points}: expected a number of points" in done.stderr
