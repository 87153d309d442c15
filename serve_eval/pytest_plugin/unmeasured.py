"""End a test of accuracy that passed although it measured nothing."""

from __future__ import annotations

import pytest

from serve_eval.pytest_plugin.endings import AccuracyNotMeasured, AccuracyWarning
from serve_eval.pytest_plugin.lines_of_tests import find_worst
from serve_eval.pytest_plugin.options import asks_to_measure, read_options

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
