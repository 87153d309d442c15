"""Say in one line how a test of accuracy ended, by its evaluations and its reports. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.pytest_plugin.endings import AccuracyEnding, AccuracyNotMeasured
from serve_eval.pytest_plugin.results import shorten_path
from serve_eval.report.ci.place import find_place
from serve_eval.report.one_line import OneLine, lead
from serve_eval.report.summary.table import ORDER

FIXTURES = frozenset({"serve_eval", "serve_eval_endpoint", "serve_eval_server"})
"""A test that uses one of these is a test of accuracy."""
_NOTED = pytest.StashKey[list[OneLine]]()
_RANKS = (*(one.value for one in ORDER), "XPASS", "XFAIL", "SKIPPED")
"""Outcomes, the worst first. A test that was not to run says less than one that passed."""


def note_line(item: pytest.Item, line: OneLine, folder: Path) -> None:
    """Keep the line of an evaluation for the reports of its test."""
    about = f"{line.about} ({item.name})" if line.about else _name(item)
    place = find_place(shorten_path(folder), os.environ)
    item.stash.setdefault(_NOTED, []).append(replace(line, about=about, place=place))


def note_error(item: pytest.Item, error: AccuracyNotMeasured, folder: Path) -> None:
    """Keep the line of an evaluation that measured nothing."""
    note_line(item, _tell("ERROR", "", error.line), folder)


def describe_phase(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> OneLine | None:
    """Return the line of a test after its set-up, call or tear-down, if there is something new."""
    if FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return None
    expected = "" if not hasattr(report, "wasxfail") else "XPASS" if report.passed else "XFAIL"
    if report.passed and call.when != "call":
        return None
    line = _describe_end(item, call, report)
    return replace(line, outcome=expected) if expected else line


def pick_worst(lines: Iterable[OneLine]) -> OneLine:
    """Return the first line with the worst outcome."""
    return min(lines, key=lambda line: _RANKS.index(line.outcome))


def speak_for_all(lines: Sequence[OneLine]) -> OneLine:
    """Return the line of the worst test, with the counts of all."""
    if not lines:
        return _tell("ERROR", "pytest", "no test of accuracy ran")
    return pick_worst(lead(lines, [_RANKS.index(line.outcome) for line in lines], "tests"))


def describe_failed_report(report: pytest.TestReport | pytest.CollectReport) -> OneLine:
    """Return the line of a file that was not collected, or of a worker that ended."""
    text = report.longreprtext.strip() or "no reason is known"
    return _tell("ERROR", report.nodeid, text.splitlines()[-1])


def _describe_end(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> OneLine:
    error = None if call.excinfo is None else call.excinfo.value
    noted = item.stash.get(_NOTED, [])
    test = _name(item)
    if noted and not report.failed:
        return pick_worst(noted)
    if noted and isinstance(error, AccuracyEnding) and noted[-1].outcome != "PASS":
        return noted[-1]
    if report.passed:
        return OneLine(outcome="PASS", about=test)
    if report.skipped:
        return _tell("SKIPPED", test, _read_reason(report))
    in_body = call.when == "call" and not isinstance(error, AccuracyNotMeasured)
    said = report.longreprtext if call.excinfo is None else call.excinfo.exconly()
    cause = error.line if isinstance(error, AccuracyEnding) else said.partition("\n")[0]
    return _tell("FAIL" if in_body else "ERROR", test, cause)


def _name(item: pytest.Item) -> str:
    """Return the name of a test without the folder of its file."""
    return item.nodeid.rpartition("/")[2]


def _read_reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped, or is expected to fail."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return str(told).removeprefix("Skipped: ")


def _tell(outcome: str, about: str, cause: str) -> OneLine:
    return OneLine(outcome=outcome, about=about, figures="no result", cause=cause, sure=True)
