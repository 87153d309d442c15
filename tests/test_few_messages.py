"""Test that workers of `make test` send less and that what is shown is the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.few_messages import UNSENT, FewMessages

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import time
import warnings

import pytest


@pytest.fixture
def slow_to_start():
    time.sleep(0.06)


@pytest.fixture
def broken_at_its_end():
    print("printed at the end")
    yield
    raise ValueError("at the end")


def test_passes(): pass
def test_starts(slow_to_start): pass
def test_fails():
    print("printed by the test")
    assert 1 == 2
def test_ends_badly(broken_at_its_end): pass
def test_warns(): warnings.warn("seen", UserWarning)
def test_skips(): pytest.skip("a reason")
@pytest.mark.xfail(reason="known")
def test_known(): assert 0
@pytest.mark.xfail(reason="known no more")
def test_known_no_more(): pass
"""


def _run(folder: Path, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-n", "1", *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    said = re.sub(r"\d+\.\d+s", "TIME", done.stdout)
    return [line for line in said.splitlines() if not line.startswith("created: ")]


def test_the_end_of_a_session_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ("-p", "no:serve_eval", "-p", "no:kmock", "--durations=9", "--durations-min=.05")
    plain = _run(tmp_path, *options)
    assert "TIME setup    test_some.py::test_starts" in plain
    assert _run(tmp_path, "-p", "tests.few_messages", *options) == plain


def _report(when: Literal["setup", "call", "teardown"], **others: Any) -> pytest.TestReport:
    fields = {"outcome": "passed", "longrepr": None, "duration": 0.01, **others}
    place = ("test_some.py", 0, "test_one")
    return pytest.TestReport("test_some.py::test_one", place, {"test_one": 1}, when=when, **fields)


@pytest.mark.parametrize(
    ("report", "sent"),
    [
        (_report("setup"), False),
        (_report("teardown"), False),
        (_report("call"), True),
        (_report("setup", duration=1.5), True),
        (_report("setup", sections=[("Captured stdout setup", "text")]), True),
    ],
)
def test_a_phase_that_nothing_shows_is_not_sent(report: pytest.TestReport, sent: bool) -> None:
    packed = FewMessages(least_shown_s=1).pytest_report_to_serializable(report)
    assert packed is not None or report.sections
    assert (packed is None or UNSENT not in packed) == sent


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_phase_that_did_not_pass_is_sent_whole(when: Any, outcome: str) -> None:
    report = _report(when, outcome=outcome)
    assert FewMessages(least_shown_s=1).pytest_report_to_serializable(report) is None


def test_make_test_uses_the_plugin() -> None:
    assert " -p tests.few_messages " in (ROOT / "Makefile").read_text(encoding="utf-8")
