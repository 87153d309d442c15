"""Describe an exception that ended the wait for a server, such as that of pytest-timeout."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_eval.pytest_plugin.answered import list_counts
from serve_eval.pytest_plugin.endings import AccuracyEnding

PASSED_ON = (
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    pytest.exit.Exception,
    pytest.skip.Exception,
    AccuracyEnding,
)
"""Exceptions that end the session, or a test by intent."""
_LIMITS = (
    "The test ended while it waited for the server, so nothing was judged. sample_timeout_s= and"
    " stall_timeout_s= of evaluate() end the wait for a server that hangs, before the time limit"
    " of the test."
)


def describe_foreign(error: BaseException, folder: Path) -> str:
    """Return the text of an exception from outside, with what was answered until then.

    A traceback follows if the exception is not an outcome of pytest.
    """
    said = str(error).strip() or "no message"
    lines = [f"{type(error).__name__}: {said.splitlines()[0]}", _LIMITS, *_list_answered(folder)]
    if not isinstance(error, pytest.fail.Exception):
        lines += ["", *"".join(traceback.format_exception(error)).splitlines()]
    return "\n".join(lines)


def _list_answered(folder: Path) -> Iterator[str]:
    """Yield what was answered of each task, and the folder that holds it."""
    from serve_eval.pytest_plugin.results import shorten_path

    if not folder.is_dir():
        yield "nothing was asked yet"
        return
    yield from list_counts(folder) or ["nothing was asked yet"]
    yield f"run folder: {shorten_path(folder)}"
