"""Tell the result of a session of pytest: in a line for chat, to GitHub, and on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.client.connection import SecretMask
from serve_eval.pytest_plugin.lines_of_tests import (
    UNDECIDED,
    EndedTest,
    describe_failed_report,
    find_unmeasured,
    pick_worst,
    speak_for_all,
)
from serve_eval.report.ci import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    add_to_job_summary,
    is_github,
    list_annotations,
    write_markdown,
)
from serve_eval.report.one_line import OneLine, write_line
from serve_eval.report.summary.figures import count
from serve_eval.schema import Connection
from serve_eval.whole_file import write_named_file

_STATES = {"FAIL": CiState.FAILURE, "ERROR": CiState.ERROR, "PASS": CiState.PASSED}
_UNMEASURED = "no accuracy test measured anything"


class TellSession:
    """The tests of accuracy of a session: how each ended, for chat, GitHub and the terminal.

    `ended` has test, outcome as pytest counts it, and fields of its line, for each phase that has
    one; `lost` are files and workers that failed.
    """

    def __init__(
        self,
        ended: Sequence[tuple[str, str, Mapping[str, Any]]],
        lost: Sequence[pytest.TestReport | pytest.CollectReport],
        environ: Mapping[str, str],
        *,
        interrupted: bool,
    ) -> None:
        self._environ, self._mask = environ, SecretMask(Connection(), environ)
        self._tests: dict[str, EndedTest] = {}
        for test, counted, fields in ended:
            self._add(test, EndedTest(counted, OneLine(**fields)))
        for report in lost:
            self._add(report.nodeid, EndedTest("ERROR", describe_failed_report(report)))
        self._skipped = find_unmeasured(list(self._tests.values()))
        notice = "interrupted" if interrupted else _UNMEASURED if self._skipped else ""
        line = speak_for_all(list(self._tests.values()))
        self._line = replace(line, notice=notice or line.notice)

    def _add(self, test: str, ended: EndedTest) -> None:
        """Keep the worst line of each test: its set-up, call and tear-down may all have one."""
        self._tests[test] = pick_worst([self._tests.get(test, ended), ended])

    def list_unmeasured(self) -> Iterator[str]:
        """Yield a line if all tests of accuracy were skipped."""
        if self._skipped:
            [(why, _), *others] = Counter(self._skipped).most_common()
            more = f", and {count(len(others), 'more reason')}" if others else ""
            told = f"{len(self._skipped)} skipped, {'no address' if 'no address: ' in why else why}"
            yield self._mask(f"serve-eval: {_UNMEASURED}: {told}{more}")

    @property
    def measured_nothing(self) -> bool:
        """True if all tests of accuracy were skipped."""
        return bool(self._skipped)

    def list_hidden(self, reasons: Sequence[str]) -> Iterator[str]:
        """Yield a line if tests that measured nothing were expected to fail."""
        if not reasons:
            return
        [(why, _), *others] = Counter(reasons).most_common()
        more = f", and {count(len(others), 'more reason')}" if others else ""
        tests = "1 xfailed test" if len(reasons) == 1 else f"{len(reasons)} xfailed tests"
        yield self._mask(
            f"serve-eval: warning: {tests} measured nothing: {why}{more};"
            " xfail(raises=AccuracyRegression) makes that an error"
        )

    def write(self, file: Path) -> str:
        """Write the line for chat. Return why it could not be written, or ""."""
        try:
            line = self._mask(write_line(self._line))
            write_named_file(file, f"{line}\n".encode(errors="backslashreplace"))
        except OSError as error:
            return f"{file} cannot be written: {error.strerror}"
        return ""

    def tell_github(self) -> Iterator[str]:
        """Add the summary to that of the job, and yield annotations and warnings to print."""
        step_summary = self._environ.get("GITHUB_STEP_SUMMARY")
        if not step_summary and not is_github(self._environ):
            return
        result = self._describe()
        if is_github(self._environ):
            yield from map(self._mask, list_annotations(result))
        if step_summary:
            try:
                add_to_job_summary(step_summary, self._mask(write_markdown(result)))
            except OSError as error:
                yield f"warning: GITHUB_STEP_SUMMARY could not be written: {error.strerror}"

    def _describe(self) -> CiResult:
        """Return the session as a result for CI systems, with a case for each test."""
        worst = pick_worst(self._tests.values())
        cases, outcome = [], worst.line.outcome
        if worst.counted in ("ERROR", "PASS"):
            outcome = worst.counted
        elif outcome == UNDECIDED:
            outcome = "INCONCLUSIVE"
        for test, (counted, line) in self._tests.items():
            said = replace(self._line, notice=line.notice) if line is worst.line else line
            state = _STATES.get(counted, CiState.SKIPPED)
            if counted == "XPASS":
                state = CiState.PASSED
            cases.append(
                CiCase(
                    group="pytest", name=test, state=state, line=said, expected=counted == "XFAIL"
                )
            )
        rows = [
            [counted, test, line.figures or line.cause]
            for test, (counted, line) in self._tests.items()
        ]
        return CiResult(
            title="pytest",
            outcome=outcome,
            suites=[CiSuite(name="pytest", cases=cases)],
            table=CiTable(columns=("outcome", "test", "figures"), rows=rows),
            notice=self._line.notice,
            line=self._line,
        )
