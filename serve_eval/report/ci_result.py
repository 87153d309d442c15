"""Hold what CI systems show of a result: cases, suites and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

from serve_eval.report.one_line import OneLine, write_line


class CiState(StrEnum):
    """The state of a test case, with the name of its JUnit element.

    FAILURE: a regression. ERROR: infrastructure, so that nothing was measured. SKIPPED: the
    endpoint cannot do it, or the test did not decide.
    """

    PASSED = "passed"
    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CiCase:
    """One test: a task, a check, a part of the path or a server.

    `group` is its class in JUnit. `line`, or else `message`, says in one line why it did not pass;
    `details` have more. `properties` are figures by name. `remarks` must be seen even if it passed.
    `expected`: a file names it as known to fail, so no annotation says it again. `in_table`: the
    table says all of it, so the summary does not say it again.
    """

    group: str
    name: str
    state: CiState
    message: str = ""
    details: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    remarks: Sequence[str] = ()
    line: OneLine | None = None
    expected: bool = False
    in_table: bool = False

    @property
    def said(self) -> str:
        """The text of `line`, or `message` if it has none."""
        return self.message if self.line is None else write_line(self.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class CiSuite:
    """The tests of one run; `host` is the endpoint."""

    name: str
    cases: Sequence[CiCase]
    host: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CiTable:
    """A table of texts; the first column is the verdict."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CiResult:
    """The result of a command.

    `outcome` is its verdict in a word, and `title` names what was tested. `notes` are sentences
    below the table, and `commands` those that come next. `line` says all of it in one line; without
    one, the worst case speaks for all. `notice` comes before everything.
    `grid` has lines of Markdown with another table: of deployments by tasks.
    """

    title: str
    outcome: str
    suites: Sequence[CiSuite]
    table: CiTable
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    notice: str = ""
    line: OneLine | None = None
    grid: Sequence[str] = ()

    @property
    def said(self) -> str:
        """The line that is the same wherever this result is shown."""
        return write_line(replace(self.line or self._choose_line(), notice=self.notice))

    def _choose_line(self) -> OneLine:
        """Return the line of the worst case, with the number of the cases."""
        order = [CiState.FAILURE, CiState.ERROR, CiState.SKIPPED, CiState.PASSED]
        worst = min(self.cases, key=lambda case: order.index(case.state), default=None)
        counts = ", ".join(
            f"{n} {state}" for state in order if (n := [c.state for c in self.cases].count(state))
        )
        bad = worst is not None and worst.state in (CiState.FAILURE, CiState.ERROR)
        cause = f"{worst.name}: {worst.message}" if worst is not None and bad else ""
        return OneLine(
            outcome=self.outcome, about=self.title, counts=counts, cause=cause, sure=True
        )

    @property
    def cases(self) -> list[CiCase]:
        """All tests of all suites."""
        return [case for suite in self.suites for case in suite.cases]


def withhold_cases(cases: Sequence[CiCase]) -> list[CiCase]:
    """Return the cases of a rehearsal, which pass and fail nothing."""
    judged = (CiState.PASSED, CiState.FAILURE)
    return [
        replace(case, state=CiState.SKIPPED) if case.state in judged else case for case in cases
    ]


def place_result(result: CiResult, place: str, mask: Callable[[str], str]) -> CiResult:
    """Return a result whose lines end with a place, and without the secrets that `mask` hides."""

    def add_place(line: OneLine | None) -> OneLine | None:
        return None if line is None else replace(line, place=place)

    suites = [
        replace(suite, cases=[replace(case, line=add_place(case.line)) for case in suite.cases])
        for suite in result.suites
    ]
    line = add_place(result.line or result._choose_line())
    masked: CiResult = _mask(replace(result, suites=suites, line=line), mask)
    return masked


def _mask(value: Any, mask: Callable[[str], str]) -> Any:
    """Return a value in which every text is masked."""
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {mask(name): _mask(one, mask) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(one, mask) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _mask(getattr(value, f.name), mask) for f in fields(value)}
        )
    return value
