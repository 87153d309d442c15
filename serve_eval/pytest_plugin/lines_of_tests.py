"""Say in one line how a test of accuracy ended, by its evaluations and its reports. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from serve_eval.pytest_plugin.endings import (
    AccuracyEnding,
    AccuracyNotMeasured,
    AccuracyUndecided,
)
from serve_eval.pytest_plugin.options import REHEARSES
from serve_eval.pytest_plugin.results import shorten_path
from serve_eval.report.ci import find_place
from serve_eval.report.one_line import OneLine
from serve_eval.report.summary.headline import ORDER
from serve_eval.schema import REHEARSED

_NOTED = pytest.StashKey[list[OneLine]]()
UNDECIDED = "does not decide: PASS"
"""The outcome of a test that only strict fails, since its PASS decides nothing."""
_RANKS = (UNDECIDED, *(one.value for one in ORDER), "XPASS", "XFAIL", "SKIPPED")
"""Outcomes, the worst first. A test that was not to run says less than one that passed."""
_COUNTED = ("FAIL", "ERROR", "PASS", "XPASS", "XFAIL", "SKIPPED")
"""The words under which pytest counts tests, in the order of the line."""


class EndedTest(NamedTuple):
    """A test of accuracy: the word under which pytest counts it, and its line."""

    counted: str
    line: OneLine

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among others, the worst first: as pytest counts it, then by its verdict.

        A test that fails only under strict shows no regression, so it comes after the errors.
        """
        if self.counted == "FAIL":
            bad = 0 if self.line.outcome == "FAIL" else 2
        else:
            bad = 1 if self.counted == "ERROR" else 3
        return bad, _RANKS.index(self.line.outcome)


def note_line(item: pytest.Item, line: OneLine, folder: Path) -> None:
    """Keep the line of an evaluation for the reports of its test."""
    about = f"{line.about} ({item.nodeid})" if line.about else item.nodeid
    place = find_place(shorten_path(folder), os.environ)
    item.stash.setdefault(_NOTED, []).append(replace(line, about=about, place=place))


def note_error(item: pytest.Item, error: AccuracyNotMeasured, folder: Path) -> None:
    """Keep the line of an evaluation that measured nothing."""
    note_line(item, _tell("ERROR", "", error.line), folder)


def find_worst(item: pytest.Item) -> OneLine | None:
    """Return the worst line of the evaluations of a test that came to an end, however that was."""
    noted = item.stash.get(_NOTED, [])
    return min(noted, key=lambda line: _RANKS.index(line.outcome), default=None)


def describe_phase(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> OneLine | None:
    """Return the line of a test of accuracy after a phase, if there is something new."""
    expected = "" if not hasattr(report, "wasxfail") else "XPASS" if report.passed else "XFAIL"
    if report.passed and call.when != "call":
        return None
    line = _describe_end(item, call, report)
    if item.stash.get(REHEARSES, False):
        cause = line.cause.removeprefix(REHEARSED).removeprefix(": ")
        line = replace(line, notice=REHEARSED, cause=cause)
    return replace(line, outcome=expected) if expected else line


def pick_worst(tests: Iterable[EndedTest]) -> EndedTest:
    """Return the first of the tests that ended worst."""
    return min(tests, key=lambda test: test.rank)


def speak_for_all(tests: Sequence[EndedTest]) -> OneLine:
    """Return the line of the worst test, with the counts of all as pytest has them."""
    if not tests:
        return _tell("ERROR", "pytest", "no test of accuracy ran")
    worst = pick_worst(tests).line
    if len(tests) == 1:
        return worst
    counted = [test.counted for test in tests]
    said = ", ".join(f"{n} {word}" for word in _COUNTED if (n := counted.count(word)))
    return replace(worst, others=f"of {len(tests)} tests: {said}")


def find_unmeasured(tests: Sequence[EndedTest]) -> list[str]:
    """Return why each test was skipped, if none of them measured anything."""
    without = all(
        test.counted == "SKIPPED"
        and test.line.outcome in ("SKIPPED", "UNSUPPORTED")
        and not test.line.notice
        for test in tests
    )
    return [test.line.cause for test in tests] if without else []


def describe_failed_report(report: pytest.TestReport | pytest.CollectReport) -> OneLine:
    """Return the line of a file that was not collected, or of a worker that ended."""
    text = report.longreprtext.strip() or "no reason is known"
    return _tell("ERROR", report.nodeid, text.splitlines()[-1])


def _describe_end(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> OneLine:
    error = None if call.excinfo is None else call.excinfo.value
    noted = item.stash.get(_NOTED, [])
    test = item.nodeid
    if not report.failed and (worst := find_worst(item)) is not None:
        judged_itself = report.passed and worst.outcome == "NO REFERENCE"
        return replace(worst, outcome="PASS", cause="") if judged_itself else worst
    if noted and isinstance(error, AccuracyEnding) and noted[-1].outcome != "PASS":
        return noted[-1]
    if report.passed:
        return OneLine(outcome="PASS", about=test)
    if report.skipped:
        return _tell("SKIPPED", test, _read_reason(report))
    in_body = call.when == "call" and not isinstance(error, AccuracyNotMeasured)
    said = report.longreprtext if call.excinfo is None else call.excinfo.exconly()
    cause = error.line if isinstance(error, AccuracyEnding) else said.partition("\n")[0]
    line = _tell("FAIL" if in_body else "ERROR", test, cause)
    if isinstance(error, AccuracyUndecided) and noted:
        why = cause.removeprefix("does not decide: ")
        return replace(noted[-1], outcome=UNDECIDED, cause=why, sure=True)
    if in_body and noted:  # A floor of the test's own: its figures and its folder say more.
        return replace(noted[-1], outcome=line.outcome, cause=cause, sure=True)
    return line


def _read_reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped, or is expected to fail."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return str(told).removeprefix("Skipped: ")


def _tell(outcome: str, about: str, cause: str) -> OneLine:
    return OneLine(outcome=outcome, about=about, figures="no result", cause=cause, sure=True)
