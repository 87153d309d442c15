"""The ways in which a test of accuracy ends, other than by passing.

pytest shows the text of these exceptions without a traceback, and their name as it is.
"""

from __future__ import annotations

import pytest


class _Ending(pytest.fail.Exception):  # type: ignore[misc,name-defined]
    """An end of a test with a text that explains itself."""

    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)


class AccuracyRegression(_Ending):
    """The endpoint answers worse than its reference: the test FAILED."""

    __module__ = "builtins"


class AccuracyNotMeasured(_Ending):
    """Nothing was measured, because of the endpoint or the plan: an ERROR, never a regression."""

    __module__ = "builtins"


class AccuracyUndecided(_Ending):
    """The run did not decide, and --serve-eval-strict makes that a failure."""

    __module__ = "builtins"


def make_error(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Turn the report of a test that measured nothing into an error.

    pytest has errors only outside the body of a test. Its terminal, its JUnit file and other
    consumers know the phase alone, so the evaluation counts as part of the set-up.
    """
    if call.excinfo is not None and isinstance(call.excinfo.value, AccuracyNotMeasured):
        report.when = "setup"
