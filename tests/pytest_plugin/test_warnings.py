"""Test that warnings about green tests are seen once, and that evidence says how to keep it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import run_pytest

TESTS = """
from serve_eval.pytest_plugin import AccuracyTests

class TestSmall(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"

    def test_few(self): self.evaluate("word_problems", limit=6)
    def test_damaged(self):
        self.evaluate("word_problems", limit=60, launcher_options={"damage": "int3"})
    def test_stopped(self):
        self.evaluate("word_problems", limit=6, model_name="no-such-model")
"""
POWER = "the classic rule detects only drops of 71.8 points or more, with 80% probability"
CATEGORY = "serve_eval.pytest_plugin.AccuracyWarning"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-rP",), ("-n", "1")])
def test_warnings_of_green_tests_are_shown_once(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "few", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(POWER) == 1, done.stdout
    assert f"AccuracyWarning: word_problems: {POWER}" in done.stdout
    assert "1 passed" in done.stdout.splitlines()[-1]
    assert "warnings" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_filters_name_the_class_of_the_warnings(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "few", "-W", f"ignore::{CATEGORY}")
    assert done.returncode == 0
    assert POWER not in done.stdout
    done = run_pytest(tmp_path, "-k", "few", "-W", f"error::{CATEGORY}")
    assert done.returncode == 1
    assert "1 failed" in done.stdout


@pytest.mark.slow
def test_a_red_test_says_how_to_keep_its_folder_and_its_warnings_are_not_repeated(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "damaged")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    [at] = [n for n, line in enumerate(lines) if line.startswith(" kept     pytest deletes this")]
    assert "--serve-eval-output DIR" in lines[at + 1]
    assert "serve_eval_output" in lines[at + 1]
    assert any(line.startswith(" next     serve-eval diagnose ") for line in lines[at - 5 : at])
    assert all(len(line) <= 80 for line in lines[at : at + 2])
    assert "AccuracyWarning" not in done.stdout
    (tmp_path / "pytest.ini").write_text("[pytest]\nserve_eval_output = runs\n")
    done = run_pytest(tmp_path, "-k", "damaged")
    assert " next     serve-eval diagnose runs/test_it.py" in done.stdout
    assert "pytest deletes this" not in done.stdout
