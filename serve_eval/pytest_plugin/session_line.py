"""Write the line of the worst test at the end of a session, for chat."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from serve_eval.client.secret_mask import SecretMask
from serve_eval.pytest_plugin.lines_of_tests import (
    describe_failed_report,
    describe_phase,
    pick_worst,
    speak_for_all,
)
from serve_eval.report.one_line import OneLine, write_line
from serve_eval.schema import Connection
from serve_eval.whole_file import write_named_file

FLAG = "--serve-eval-notify"
_PHASES = ("setup", "call", "teardown")


class SessionLine:
    """Collects a line for each test of accuracy, and writes that of the worst one.

    Workers of pytest-xdist send theirs with their reports. Raises UsageError for a file that cannot
    be written.
    """

    def __init__(self, file: Path) -> None:
        if file.name == "-" or file.is_dir() or not file.parent.is_dir():
            raise pytest.UsageError(f"{FLAG}: {file}: name a file in a folder that exists")
        self._file = file
        self._lines: dict[str, OneLine] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the line of a test to its report."""
        report = yield
        if (line := describe_phase(item, call, report)) is not None:
            report.__dict__["serve_eval_line"] = asdict(line)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the line of a report; that of an attempt which is repeated does not count."""
        given = getattr(report, "serve_eval_line", None)
        if given is not None and str(report.outcome) != "rerun":
            self._add(report.nodeid, OneLine(**given))
        elif given is None and report.when not in _PHASES and report.failed:  # a lost worker
            self._add(report.nodeid, describe_failed_report(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take what could not be collected as an error: its tests are not known."""
        if report.failed:
            self._add(report.nodeid, describe_failed_report(report))

    def _add(self, test: str, line: OneLine) -> None:
        """Keep the worst line of each test: its set-up, call and tear-down may all have one."""
        self._lines[test] = pick_worst([self._lines.get(test, line), line])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file, unless this is a worker or nothing was to run."""
        config = session.config
        if hasattr(config, "workerinput") or config.getoption("collectonly"):
            return
        line = speak_for_all(list(self._lines.values()))
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            line = replace(line, notice="interrupted")
        text = SecretMask(Connection(), os.environ)(write_line(line))
        try:
            write_named_file(self._file, f"{text}\n".encode(errors="backslashreplace"))
        except OSError as error:
            session.exitstatus = max(int(exitstatus), pytest.ExitCode.TESTS_FAILED)
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                told = f"error: {FLAG}: {self._file} cannot be written: {error.strerror}"
                reporter.write_line(f"\n{told}", red=True)
