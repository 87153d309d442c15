"""Test that a class attribute that reads as an option is never ignored in silence."""

from __future__ import annotations

from pathlib import Path

from tests.pytest_plugin.run_pytest import run_pytest

TESTS = """
from serve_eval.pytest_plugin import AccuracyTests

class Base(AccuracyTests):
    MODEL_NAME = LAUNCHER = "simulated"
    OPTIONS = {"limit": 10, "no_reference": True}

class TestIgnored(Base):
    LAUNCHER_OPTIONS = {"accuracy": 0.1}
    def test_without(self): self.evaluate("word_problems")
    def test_given(self): self.evaluate("word_problems", launcher_options=self.LAUNCHER_OPTIONS)

class TestMisspelt(Base):
    OPTION = {"limit": 3}
    MODEL = "another"
    def test_both(self): self.evaluate("word_problems")

class TestOwn(Base):
    TASKS, THRESHOLD, LIMIT, HELPER = ["word_problems"], 3, 20, print
    def test_own(self): self.evaluate(*self.TASKS, limit=self.LIMIT)
"""


def test_an_attribute_without_effect_is_an_error_and_own_constants_are_not(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-q", "-W", "ignore")
    assert "2 passed, 2 errors" in done.stdout, done.stdout
    told = [line for line in done.stdout.splitlines() if "no attribute of AccuracyTests" in line]
    assert told[:3] == [
        "PlanError: LAUNCHER_OPTIONS: no attribute of AccuracyTests, so it would have no effect."
        " Write OPTIONS = {'launcher_options': ...}, or rename it",
        "PlanError: OPTION: no attribute of AccuracyTests. Did you mean OPTIONS?",
        "MODEL: no attribute of AccuracyTests. Did you mean MODEL_NAME?",
    ]
