"""Test what GitHub is told of a session: annotations, and the summary of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import run_pytest
from tests.standin.process import free_port

TESTS = """
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 30}
    def test_sound(self): self.evaluate("word_problems")
    def test_damaged(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    def test_dead(self): self.evaluate("word_problems", base_url="localhost:DEAD")
    def test_known(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
def test_other(): raise AssertionError
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-n", "2", "-q")])
def test_annotations_and_the_summary_are_written_once(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.replace("DEAD", str(free_port())))
    (tmp_path / "waives.txt").write_text("test_it.py::TestIt::test_known XFAIL (bug 7)\n")
    summary = tmp_path / "summary.md"
    summary.write_text("of another step\n")
    done = run_pytest(
        tmp_path, *flags, "--serve-eval-waivers", "waives.txt", "--serve-eval-notify", "line.txt",
        GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary), GITHUB_SERVER_URL="https://gh",
        GITHUB_REPOSITORY="o/r", GITHUB_RUN_ID="5",
    )  # fmt: skip
    line = (tmp_path / "line.txt").read_text().strip()
    assert line.startswith("FAIL word_problems embedded (test_it.py::TestIt::test_damaged): ")
    assert line.endswith("; of 4 tests: 1 FAIL, 1 ERROR, 1 PASS, 1 XFAIL;"
                         " https://gh/o/r/actions/runs/5")  # fmt: skip
    told = [one for one in done.stdout.splitlines() if one.startswith("::")]
    escaped = line.replace("%", "%25")
    assert (
        told[0]
        == f"::error title=serve-eval%3A test_it.py%3A%3ATestIt%3A%3Atest_damaged::{escaped}"
    )
    assert len(told) == 2, told
    assert "::ERROR test_it.py::TestIt::test_dead: no result; EndpointError: " in told[1]
    text = summary.read_text()
    assert text.startswith("of another step\nFAIL word_problems embedded ")
    assert text.count("### FAIL: pytest") == 1
    for outcome, test in (
        ("PASS", "sound"),
        ("FAIL", "damaged"),
        ("ERROR", "dead"),
        ("XFAIL", "known"),
    ):
        assert f"| **{outcome}** | test\\_it.py::TestIt::test\\_{test} |" in text, text


def test_a_session_without_tests_of_accuracy_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): raise AssertionError\n")
    done = run_pytest(tmp_path, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(tmp_path / "s.md"))
    assert "::" not in done.stdout.replace("test_it.py::test_a", "")
    assert not (tmp_path / "s.md").exists()


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(serve_eval): pass\n")
    done = run_pytest(tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path))
    assert done.returncode == 0
    assert "warning: GITHUB_STEP_SUMMARY could not be written" in done.stdout
