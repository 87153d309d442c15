"""Standard output and error, whatever state the caller left them in."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_EVERY_S, DRAWN_EVERY_S = 5.0, 0.25
"""How often a long step tells of itself: by a line where nobody looks on, by another text of one line on a terminal."""


def prepare_streams() -> None:
    """Gives a closed standard stream to /dev/null, and lets no character that a terminal lacks stop us."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def emit(text: str) -> None:
    """Writes to standard output. A reader that has gone, or a full disk behind it, does not change what a run found."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"error: standard output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def draw(render: Callable[[Console], None]) -> None:
    """Writes to standard output what `render` puts on a console of its width. Names that hold the word of a picture,
    such as :sound:, stay what they are."""
    from rich.console import Console

    buffer = io.StringIO()  # rich's own capture would write to a standard output that may be broken
    terminal = sys.stdout.isatty()
    render(Console(file=buffer, force_terminal=terminal, width=Console().width, highlight=False, emoji=False))
    emit(buffer.getvalue())


def say(*lines: str) -> None:
    """Writes lines to standard error, without what could control a terminal; empty ones are left out."""
    from serve_eval.report.text import clean

    try:
        sys.stderr.write("".join(f"{clean(line)}\n" for line in lines if line))
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class LongSteps:
    """Tells on standard error how far a long step is. The line goes from a terminal when the step is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said_s = clock, float("-inf")

    def __call__(self, line: str, last: bool) -> None:
        terminal, now = sys.stderr.isatty(), self._clock()
        if not last and now - self._said_s < (DRAWN_EVERY_S if terminal else PLAIN_EVERY_S):
            return
        self._said_s = float("-inf") if last else now
        if not terminal:
            say(line)
            return
        from serve_eval.report.text import clean

        try:
            sys.stderr.write("\r\x1b[K" if last else f"\r{clean(line)}\x1b[K")
            sys.stderr.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
