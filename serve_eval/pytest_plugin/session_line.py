"""Say at the end of a session how its tests of accuracy ended: for chat, GitHub and the terminal.

pytest loads this module at each start, so what needs more than pytest is imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from serve_eval.pytest_plugin.endings import AccuracyNotMeasured
from serve_eval.pytest_plugin.options import PREFIX, USED_ADDRESS, is_accuracy_test, read_options

FLAG = "--serve-eval-notify"
UNUSED_ADDRESS = (
    "serve-eval: warning: no test asked the address of --serve-eval-base-url: tests with a launcher"
    " or an address of their own do not; launcher=None in evaluate() or the marker makes them"
)
_PHASES = ("setup", "call", "teardown")


class SessionLine:
    """Collects a line for each test of accuracy, and tells that of the worst one.

    Workers of pytest-xdist send theirs with their reports. `file` gets the line. Raises UsageError
    for a file that cannot be written.
    """

    def __init__(self, file: Path | None, environ: Mapping[str, str] = os.environ) -> None:
        if file is not None and (file.name == "-" or file.is_dir() or not file.parent.is_dir()):
            raise pytest.UsageError(f"{FLAG}: {file}: name a file in a folder that exists")
        self._file, self._environ, self._used_address = file, environ, False
        self._hidden: list[str] = []
        self._ended: list[tuple[str, str, dict[str, Any]]] = []
        self._lost: list[pytest.TestReport | pytest.CollectReport] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the line of a test of accuracy to its report."""
        report = yield
        if not is_accuracy_test(item):
            return report
        report.__dict__["serve_eval_used_address"] = item.stash.get(USED_ADDRESS, False)
        from dataclasses import asdict

        from serve_eval.pytest_plugin.lines_of_tests import describe_phase

        if (line := describe_phase(item, call, report)) is not None:
            report.__dict__["serve_eval_line"] = asdict(line)
        error = None if call.excinfo is None else call.excinfo.value
        if hasattr(report, "wasxfail") and isinstance(error, AccuracyNotMeasured):
            report.__dict__["serve_eval_hidden"] = error.line
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the line of a report; that of an attempt which is repeated does not count."""
        self._used_address |= getattr(report, "serve_eval_used_address", False)
        if hidden := getattr(report, "serve_eval_hidden", ""):
            self._hidden.append(hidden)
        given = getattr(report, "serve_eval_line", None)
        if given is not None and str(report.outcome) != "rerun":
            self._ended.append((report.nodeid, count_as(report), given))
        elif given is None and report.when not in _PHASES and report.failed:  # a lost worker
            self._lost.append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take what could not be collected as an error: its tests are not known."""
        if report.failed:
            self._lost.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Tell the result, unless this is a worker or no test of accuracy was to run."""
        config = session.config
        if hasattr(config, "workerinput") or config.getoption("collectonly"):
            return
        lines = [*self._report_result(session, exitstatus), *self._list_unused(config)]
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if lines and reporter is not None:
            reporter.ensure_newline()
            for line in ("", *lines):
                reporter.write_line(line)

    def _report_result(self, session: pytest.Session, exitstatus: int) -> list[str]:
        """Write the file, annotate on GitHub, and return lines for the terminal."""
        if self._file is None and not self._ended:
            return []
        from serve_eval.pytest_plugin.session_result import TellSession

        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        told = TellSession(self._ended, self._lost, self._environ, interrupted=interrupted)
        lines = [*told.list_unmeasured(), *told.list_hidden(self._hidden), *told.tell_github()]
        if told.measured_nothing and read_options(session.config).strict:
            session.exitstatus = max(int(exitstatus), pytest.ExitCode.TESTS_FAILED)
            lines.append("error: --serve-eval-strict: a session that measured nothing is not green")
        if self._file is not None and (error := told.write(self._file)):
            session.exitstatus = max(int(exitstatus), pytest.ExitCode.TESTS_FAILED)
            lines.append(f"error: {FLAG}: {error}")
        return lines

    def _list_unused(self, config: pytest.Config) -> list[str]:
        """Return a warning if the address of the command line was asked by no test."""
        if self._used_address or not config.getoption(f"{PREFIX}base_url"):
            return []
        return [UNUSED_ADDRESS]


def count_as(report: pytest.TestReport) -> str:
    """Return the word under which pytest counts a report."""
    expected = hasattr(report, "wasxfail")
    if report.passed:
        return "XPASS" if expected else "PASS"
    if report.skipped:
        return "XFAIL" if expected else "SKIPPED"
    return "FAIL" if report.when == "call" else "ERROR"
