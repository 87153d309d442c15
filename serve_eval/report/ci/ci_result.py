"""Hold what CI systems show of any command: test cases in suites, a table and next steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


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

    `group` is its class in JUnit. `message` says in one line why it did not pass; `details` have
    more. `properties` are figures by name. `remarks` must be seen even if it passed.
    """

    group: str
    name: str
    state: CiState
    message: str = ""
    details: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    remarks: Sequence[str] = ()


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
    below the table, and `commands` those that come next. `grid` has lines of Markdown with another
    table: of deployments by tasks.
    """

    title: str
    outcome: str
    suites: Sequence[CiSuite]
    table: CiTable
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    grid: Sequence[str] = ()

    @property
    def cases(self) -> list[CiCase]:
        """All tests of all suites."""
        return [case for suite in self.suites for case in suite.cases]
