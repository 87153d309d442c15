"""Describe in lines how tests of accuracy ended, one by one or at the end of a session."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from serve_eval.client.connection import SecretMask
from serve_eval.pytest_plugin.endings import (
    AccuracyEnding,
    AccuracyNotMeasured,
    AccuracyUndecided,
    AccuracyWarning,
)
from serve_eval.pytest_plugin.options import REHEARSES, asks_to_measure, read_options
from serve_eval.pytest_plugin.results import shorten_path
from serve_eval.report.ci import (
    add_to_job_summary,
    find_place,
    is_github,
    list_annotations,
    write_markdown,
)
from serve_eval.report.ci_result import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    OneLine,
    write_line,
)
from serve_eval.report.summary.figures import count
from serve_eval.report.summary.headline import ORDER
from serve_eval.schema import REHEARSED, Connection
from serve_eval.whole_file import write_named_file

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
        return OneLine("PASS", test)
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
    return OneLine(outcome, about, figures="no result", cause=cause, sure=True)


_STRICT = (
    "Under --serve-eval-strict, only tests that --serve-eval-rehearse of the command line rehearses"
    " are skipped: a rehearsal that was left in a test would go on to measure nothing."
)


def end_rehearsed(item: pytest.Item, failed: AssertionError | None = None) -> None:
    """Skip a test that was rehearsed; one that `failed` did so on made-up answers.

    Raises AccuracyUndecided under strict, unless the command line asks for the rehearsal.
    """
    __tracebackhide__ = True
    if not item.stash.get(REHEARSES, False):
        return
    line = find_worst(item)
    said = REHEARSED if line is None else write_line(line)
    if failed is not None:
        first = str(failed).partition("\n")[0]
        said = f"{said}; withheld: {type(failed).__name__}{f': {first}' if first else ''}"
    options = read_options(item.config)
    if options.strict and not options.rehearse:
        raise AccuracyUndecided(f"{said}\n{_STRICT}")
    raise pytest.skip.Exception(said, _use_item_location=True)


UNMEASURED = "measured nothing: the test ended without a call of evaluate() or compare()"
_ADVICE = (
    "Call it, with parentheses. A test that measures nothing needs no fixture serve_eval, no task"
    " in a marker, and a place outside of AccuracyTests.\n"
    "Without --serve-eval-strict, or serve_eval_strict of the ini file, the test is skipped with a"
    " warning."
)


def end_unmeasured(item: pytest.Item) -> None:
    """Skip a test that asked for a measurement and made none, with a warning.

    Raises AccuracyNotMeasured under strict.
    """
    __tracebackhide__ = True
    if find_worst(item) is not None or not asks_to_measure(item):
        return
    if read_options(item.config).strict:
        raise AccuracyNotMeasured(f"{UNMEASURED}\n{_ADVICE}")
    item.warn(AccuracyWarning(UNMEASURED))
    raise pytest.skip.Exception(UNMEASURED, _use_item_location=True)


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
                CiCase("pytest", test, state=state, line=said, expected=counted == "XFAIL")
            )
        rows = [
            [counted, test, line.figures or line.cause]
            for test, (counted, line) in self._tests.items()
        ]
        return CiResult(
            title="pytest",
            outcome=outcome,
            suites=[CiSuite("pytest", cases)],
            table=CiTable(columns=("outcome", "test", "figures"), rows=rows),
            notice=self._line.notice,
            line=self._line,
        )
