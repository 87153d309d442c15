"""The ways in which a test of accuracy ends, other than by passing, and its warnings.

pytest shows the text of these exceptions without a traceback, and their name as it is.
"""

from __future__ import annotations

import pytest


class AccuracyWarning(UserWarning):
    """A warning about a test that passed, or about a waiver. Filters can name it."""


class AccuracyEnding(pytest.fail.Exception):  # type: ignore[misc,name-defined]
    """An end of a test with a text that explains itself."""

    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)
        self.line = text.partition("\n")[0]


class AccuracyRegression(AccuracyEnding):
    """The endpoint answers worse than its reference: the test FAILED."""

    __module__ = "builtins"


class AccuracyNotMeasured(AccuracyEnding):
    """Nothing was measured, because of the endpoint or the plan: an ERROR, never a regression."""

    __module__ = "builtins"


class AccuracyUndecided(AccuracyEnding):
    """The run did not decide, and --serve-eval-strict makes that a failure."""

    __module__ = "builtins"


def show_ending(report: pytest.TestReport, call: pytest.CallInfo[None], *, rehearses: bool) -> None:
    """Give a report the first line as its message; what measured nothing becomes an error.

    pytest has errors only outside the body of a test. Its terminal, its JUnit file and other
    consumers know the phase alone, so the evaluation counts as part of the set-up. Without a line,
    the whole text would be the message in the list of failures and the JUnit file. The message of a
    test that `rehearses` says so first.
    """
    if call.excinfo is None:
        return
    ending, crash = call.excinfo.value, getattr(report.longrepr, "reprcrash", None)
    if crash is not None and isinstance(ending, AccuracyEnding):
        crash.message = ending.line
    if crash is not None and rehearses:
        from serve_eval.schema import REHEARSED

        said = crash.message.removeprefix(f"{REHEARSED}: ")
        crash.message = f"{REHEARSED}: {said}"
    if isinstance(ending, AccuracyNotMeasured):
        report.when = "setup"
