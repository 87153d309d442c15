"""Test what a session of pytest tells at its end, in chat and on GitHub."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.pytest_plugin.run_pytest import run_pytest
from tests.standin.deployments import free_port

TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestLine(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 30}

    def test_sound(self): self.evaluate("word_problems")
    def test_damaged(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    def test_dead(self): self.evaluate("word_problems", base_url="localhost:DEAD")
    @pytest.mark.serve_eval(base_url="localhost:DEAD")
    def test_dead_endpoint(self, serve_eval_endpoint): pass
    @pytest.mark.xfail
    def test_known(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    @pytest.mark.skip(reason="not today")
    def test_skipped(self): self.evaluate("word_problems")
    def test_own_check(self):
        report = self.evaluate("word_problems")
        assert report.tasks[0].result.planned == 31, "too few"

def test_other(): assert True
"""
DROP = r"\d+\.\d against \d+\.\d \((drop|gain) \d+\.\d \[-?\d+\.\d, -?\d+\.\d\]\)"
NAME = r"test_it\.py::TestLine::test_"
COUNTS = "30 asked, 0 failed, 0 repaired"


def _run(folder: Path, *arguments: str, **variables: str) -> str:
    """Return the line of a session; its variables have no address of a CI job."""
    (folder / "test_it.py").write_text(TESTS.replace("DEAD", str(free_port())))
    none = dict.fromkeys(("GITHUB_ACTIONS", "CI_JOB_URL", "BUILD_URL"), "")
    given = ("--serve-eval-output", "runs", "--serve-eval-notify", "line.txt", *arguments)
    done = run_pytest(folder, *given, **{**none, **variables})
    line = (folder / "line.txt").read_text()
    assert line.endswith("\n"), done.stdout + done.stderr
    assert line.count("\n") == 1
    return line.strip()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_worst_test_speaks_with_the_counts_of_all(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    line = _run(tmp_path, *workers, "--junitxml", "junit.xml", "-k", "not own_check")
    counts = "of 6 tests: 1 FAIL, 2 ERROR, 1 PASS, 1 XFAIL, 1 SKIPPED"
    told = rf"FAIL word_problems embedded \({NAME}damaged\): {DROP}; {COUNTS}(; likely: .+)?"
    assert re.fullmatch(rf"{told}; {counts}; runs/test_it.py/TestLine/test_damaged/\S+", line), line
    run = line.rpartition("; ")[2]
    alone = serve_eval("judge", tmp_path / run, "--notify-text", "-").stdout.splitlines()[-1]
    said = alone.rpartition("; ")[0]
    assert line.startswith(
        said.replace("embedded:", "embedded (test_it.py::TestLine::test_damaged):", 1)
    )
    junit = (tmp_path / "junit.xml").read_text()
    assert f'<failure message="{said}"' in junit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ("dead", r"ERROR test_it.py::TestLine::test_dead: no result; EndpointError: http://localhost:\d+/v1/models"
         r" does not answer: .*; of 2 tests: 2 ERROR"),
        ("own_check or sound", rf"FAIL word_problems embedded \({NAME}own_check\): {DROP};"
         rf" {COUNTS}; AssertionError: too few; of 2 tests: 1 FAIL, 1 PASS; runs/\S+"),
        ("sound", rf"PASS word_problems embedded \({NAME}sound\): {DROP}; {COUNTS}; runs/\S+"),
        ("skipped", rf"no accuracy test measured anything: SKIPPED {NAME}skipped: no result;"
         r" not today"),
        ("other", "ERROR pytest: no result; no test of accuracy ran"),
    ],
)  # fmt: skip
def test_each_ending_has_a_line(tmp_path: Path, chosen: str, line: str) -> None:
    said = _run(tmp_path, "-k", chosen)
    assert re.fullmatch(line, said), said


@pytest.mark.slow
def test_a_file_that_is_not_collected_is_an_error_and_the_job_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    said = _run(
        tmp_path, "--continue-on-collection-errors", "-k", "sound", CI_JOB_URL="https://ci/job/7"
    )
    told = r"ERROR test_broken.py: no result; .*no_such_module.*; of 2 tests: 1 ERROR, 1 PASS"
    assert re.fullmatch(told, said), said
    assert re.search("; https://ci/job/7$", _run(tmp_path, "-k", "sound", "test_it.py",
                                                 CI_JOB_URL="https://ci/job/7"))  # fmt: skip


@pytest.mark.parametrize("file", ["-", "absent/line.txt", "."])
def test_a_file_that_cannot_be_written_is_a_wrong_use(tmp_path: Path, file: str) -> None:
    done = run_pytest(tmp_path, "--serve-eval-notify", file)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--serve-eval-notify" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_what_a_bare_xfail_hides_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom serve_eval.pytest_plugin import AccuracyTests\n"
        "class TestHidden(AccuracyTests):\n"
        "    MODEL_NAME = LAUNCHER = 'simulated'\n"
        "    OPTIONS = {'limit': 5, 'no_reference': True}\n"
        "    @pytest.mark.xfail\n"
        "    def test_dead(self):\n"
        f"        self.evaluate('word_problems', base_url='localhost:{free_port()}')\n"
        "    @pytest.mark.xfail\n"
        "    def test_typo(self): self.evaluate('word_problems', limti=3)\n"
        "    @pytest.mark.xfail\n"
        "    def test_own(self): assert self.evaluate('word_problems') is None\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert "3 xfailed" in done.stdout, done.stdout
    [line] = [one for one in done.stdout.splitlines() if "measured nothing" in one]
    assert line.startswith("serve-eval: warning: 2 xfailed tests measured nothing: ")
    assert line.endswith(
        ", and 1 more reason; xfail(raises=AccuracyRegression) makes that an error"
    )


TESTS_GITHUB = """
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
    (tmp_path / "test_it.py").write_text(TESTS_GITHUB.replace("DEAD", str(free_port())))
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
