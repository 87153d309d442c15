"""Standard output and error, in any state in which the caller left them, kept apart from the output
of others' code.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_EVERY_S, DRAWN_EVERY_S = 5.0, 0.25
"""How often a long step tells of itself: by a line where nobody looks on, by another text of one
line on a terminal."""
STDOUT = tuple(map(Path, ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")))
_reserved: list[TextIO] = []
"""The stream to standard output, once it is reserved for `emit`."""


def prepare_streams() -> None:
    """Gives a closed standard stream to /dev/null, and lets no character that a terminal lacks stop
    us.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # a program that we start would find it closed
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def reserve_stdout() -> None:
    """Keeps standard output for `emit`, for the rest of the process: its readers expect JSON. What
    anything else writes there, code of others above all, be it by C or by a child process, goes to
    standard error. A stream that a caller put in its place stays.
    """
    before = sys.__stdout__
    if before is None or sys.stdout is not before or _reserved:
        return
    before.flush()
    _reserved.append(os.fdopen(os.dup(1), "w", encoding=before.encoding, errors="backslashreplace"))
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _stdout() -> TextIO:
    return _reserved[0] if _reserved else sys.stdout


def is_terminal() -> bool:
    """Return True where standard output is a terminal."""
    return _stdout().isatty()


def path_of(file: Path) -> Path:
    """Return the path under which a file that is asked for can be opened: standard output has
    moved.
    """
    return Path(f"/dev/fd/{_reserved[0].fileno()}") if _reserved and file in STDOUT else file


def emit(text: str) -> None:
    """Writes to standard output. A reader that has gone, or a full disk behind it, does not change
    what a run found.
    """
    out = _stdout()
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"error: standard output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), _reserved[0].fileno() if _reserved else 1)


def draw(render: Callable[[Console], None]) -> None:
    """Writes to standard output what `render` puts on a console of its width. Names that hold the
    word of a picture, such as :sound:, stay what they are.
    """
    from rich.console import Console

    buffer = io.StringIO()  # rich's own capture would write to a standard output that may be broken
    terminal, width = is_terminal(), Console().width
    if terminal and "COLUMNS" not in os.environ:
        with suppress(OSError):  # rich looks at the descriptors 0 to 2
            width = os.get_terminal_size(_stdout().fileno()).columns or width
    render(Console(file=buffer, force_terminal=terminal, width=width, highlight=False, emoji=False))
    emit(buffer.getvalue())


def say(*lines: str) -> None:
    """Writes lines to standard error, without what could control a terminal; empty ones are left
    out.
    """
    from serve_eval.report.text import clean

    try:
        sys.stderr.write("".join(f"{clean(line)}\n" for line in lines if line))
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class LongSteps:
    """Tells on standard error how far a long step is. The line goes from a terminal when the step
    is over.
    """

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
