"""Start the process that draws pictures, also while a run still waits for answers.

V8 takes a third of a second to load. A run has its process load it with the last answers, and
hands over the pictures when the verdict is said. This module imports no picture: it is in use while
requests are timed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path

from serve_eval.processes.child_process import LimitedEnd, LimitedProcess

UNWANTED = "SERVE_EVAL_NO_PICTURES"
"""The variable with which pages have rulers alone, which saves a second for each page."""
LIMIT_S, EACH_S = 60.0, 1.0
"""Seconds for the first picture, and for each further one."""
MEMORY_BYTES = 2 << 30
"""Memory of the process: a page with 400 pictures takes a third of it."""
AHEAD_CPU_S = 600.0
"""Seconds of processor time of a process that starts before its pictures are known."""
AHEAD = "--ahead"
"""The argument with which the script loads V8 before it reads."""
_SCRIPT = Path(__file__).parent / "pictures" / "drawing_script.py"


def can_draw() -> bool:
    """Return True if pictures are wanted and the package that draws is installed."""
    return not os.environ.get(UNWANTED) and not lacks_library()


def lacks_library() -> bool:
    """Return True if the package that draws is not installed."""
    return find_spec("vl_convert") is None


class Ahead:
    """The process of the next page of this command, which may be started before the page is."""

    def __init__(self) -> None:
        self._process: LimitedProcess | None = None

    def start(self) -> None:
        """Start the process, unless it has started or no pictures will be drawn."""
        if self._process is None and can_draw():
            self._process = LimitedProcess(
                _SCRIPT, AHEAD, memory_bytes=MEMORY_BYTES, cpu_s=AHEAD_CPU_S
            )

    def take(self) -> LimitedProcess | None:
        """Return the process for its one page; None if it has not started, or was taken."""
        process, self._process = self._process, None
        return process

    def end(self) -> None:
        """End a process that was not taken."""
        if (process := self.take()) is not None:
            process.end()


_ahead: ContextVar[Ahead] = ContextVar("ahead")


@contextmanager
def drawing_ahead() -> Iterator[Ahead]:
    """Let the first page that is written in the block use the process that the block starts."""
    ahead = Ahead()
    before = _ahead.set(ahead)
    try:
        yield ahead
    finally:
        _ahead.reset(before)
        ahead.end()


def draw_lines(given: bytes, count: int) -> LimitedEnd:
    """Return what the process writes for `count` lines, and the reason of an early end."""
    ahead, limit_s = _ahead.get(None), LIMIT_S + EACH_S * count
    process = (ahead.take() if ahead else None) or LimitedProcess(
        _SCRIPT, memory_bytes=MEMORY_BYTES, cpu_s=limit_s
    )
    return process.finish(given, limit_s=limit_s)
