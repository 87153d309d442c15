"""Withhold how a rehearsed test ended: the stand-in answered, so nothing was judged."""

from __future__ import annotations

import pytest

from serve_eval.pytest_plugin.endings import AccuracyUndecided
from serve_eval.pytest_plugin.lines_of_tests import find_worst
from serve_eval.pytest_plugin.options import REHEARSES, read_options
from serve_eval.report.one_line import write_line
from serve_eval.schema import REHEARSED

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
