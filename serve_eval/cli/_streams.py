"""Write to standard output and error, kept apart from the output of other code.

The streams may be closed, full or redirected when the process starts.
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
"""Seconds between two reports of a long step: as lines in a log, as one line on a terminal."""
STDOUT = tuple(map(Path, ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")))
LEAST_COLUMNS, MOST_COLUMNS = 20, 1000
"""Bounds of a width that text can be laid out for; another one is ignored."""
ALWAYS_SAID = (
    "error:", "Interrupted", "Finished answers", "No answer was", "--strict: ", "::",
)  # fmt: skip
"""Beginnings of what is written to standard error although the command is quiet.

The last two say why a strict command fails, and annotate on GitHub."""
_quiet: list[bool] = []
"""Not empty if the command is quiet."""
_reserved: list[TextIO] = []
"""The stream to standard output, once it is reserved for `emit`."""


def prepare_streams() -> None:
    """Open /dev/null for closed standard streams, and escape characters that cannot be encoded.

    The command is not quiet.
    """
    _quiet.clear()
    _drop_odd_sizes()
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # else a child would find it closed
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_odd_sizes() -> None:
    """Remove sizes of a terminal that are none: rich and click would print nothing, or break."""
    for name, least in (("COLUMNS", LEAST_COLUMNS), ("LINES", 1)):
        given = os.environ.get(name, "")
        sound = given.isascii() and given.isdecimal() and least <= int(given[:9]) <= MOST_COLUMNS
        if given and not sound:
            del os.environ[name]


def reserve_stdout() -> None:
    """Reserve standard output for `emit` for the rest of the process, since readers expect JSON.

    Everything else that is written there goes to standard error: output of other Python code, of C
    code and of child processes. A stream that a caller put in its place is left alone.
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


def be_quiet() -> None:
    """Write only the conclusion and errors from now on."""
    _quiet.append(True)


def is_quiet() -> bool:
    """Return True if only the conclusion and errors are to be written."""
    return bool(_quiet)


def is_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return _stdout().isatty()


def path_of(file: Path) -> Path:
    """Return the path that opens a file the user named.

    It differs for standard output, which may have moved.
    """
    return Path(f"/dev/fd/{_reserved[0].fileno()}") if _reserved and file in STDOUT else file


def emit(text: str) -> None:
    """Write to standard output, with escapes in place of the controls of foreign text.

    A reader that is gone, or a full disk, does not change the result of a run.
    """
    from serve_eval.report.text import has_controls, reveal

    _write(reveal(text) if has_controls(text) else text)


def _write(text: str) -> None:
    out = _stdout()
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"error: standard output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), _reserved[0].fileno() if _reserved else 1)


class _Buffer(io.StringIO):
    """Text for standard output, with the encoding of that, which says what can be drawn."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return _stdout().encoding or "utf-8"


def draw(render: Callable[[Console], None], *, conclusion: int = 1) -> None:
    """Write to standard output what `render` prints on a console of its width.

    Of a quiet command only the first lines are written, which are the conclusion.
    Emoji codes such as :sound: stay as they are, since names may contain them.
    """
    from rich.console import Console

    from serve_eval.report.text import keep_styles
    from serve_eval.schema import REHEARSED

    buffer = _Buffer()  # rich's capture writes to a standard output that may be broken
    terminal = is_terminal() or bool(os.environ.get("FORCE_COLOR"))
    width = Console().width
    if terminal and "COLUMNS" not in os.environ:
        with suppress(OSError):  # rich reads only descriptors 0 to 2
            width = os.get_terminal_size(_stdout().fileno()).columns or width
    forced = terminal or None  # None: FORCE_COLOR decides
    render(Console(file=buffer, force_terminal=forced, width=width, highlight=False, emoji=False))
    text = buffer.getvalue()
    text = keep_styles(text)
    if _quiet:
        lines = text.splitlines(keepends=True)
        # The notice of a rehearsal comes before the conclusion.
        text = "".join(lines[: conclusion + (REHEARSED in "".join(lines[:1]))])
    _write(text)


def say(*lines: str) -> None:
    """Write non-empty lines to standard error, without terminal control characters.

    On a terminal, long lines are broken between words. A quiet command writes only errors, and how
    to go on.
    """
    if _quiet and not next(filter(None, lines), "").startswith(ALWAYS_SAID):
        return
    from serve_eval.report.text import clean

    try:
        width = _columns_of_stderr()
        sys.stderr.write("".join(f"{_break(clean(line), width)}\n" for line in lines if line))
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _columns_of_stderr() -> int:
    """Return the columns of the terminal; 0 if standard error is none."""
    if not sys.stderr.isatty():
        return 0
    with suppress(OSError, ValueError):
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stderr.fileno()).columns)
    return 0


def _break(text: str, width: int) -> str:
    """Return a text whose lines are broken between words, with the next lines indented.

    A line that is a command stays whole, so that it can be copied.
    """
    if not width:
        return text
    import textwrap

    broken = []
    for line in text.split("\n"):
        if line.lstrip().startswith("serve-eval "):
            broken.append(line)
            continue
        margin = " " * (len(line) - len(line.lstrip()))
        broken += textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{margin}  ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(broken)


class LongSteps:
    """A reporter of long steps on standard error.

    On a terminal, its line is erased at the end of the step.
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
