"""Read lines of a log that grows, piece by piece in bounded memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

CHUNK = 1 << 16
MOST_AT_ONCE = 1 << 20
"""Maximum bytes per read. Of a longer piece, only the last bytes are read."""
LONGEST_LINE = 1 << 13
"""Maximum bytes of a line that are kept; the rest is dropped."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LABEL = re.compile(
    r"(?:(?P<task>\d{1,6}):(?: |$)|\[(?P<job>\d+,\d+)\]<std(?:out|err)>: ?|\[rank(?P<rank>\d+)\]: )"
)
"""Prefix of lines from srun --label, from mpirun --tag-output, and of PyTorch's tracebacks."""
_PROCESS = re.compile(r"(?:\((?P<name>[\w.-]+,?(?: [\w.]+=[\w.]+,?)*? pid=\d+[^()]{0,40})\) ?)+")
"""Prefix of lines of vLLM's processes and of Ray's."""
_RANK = re.compile(r"\[RANK (\d{1,6})\]", re.IGNORECASE)


class Line(NamedTuple):
    """A line without colours and labels.

    `stream` is the rank that wrote it, if the line names one.
    """

    stream: str
    text: str


class LogLines:
    """Reads what was added to a log; `grew` is True if there was something.

    A log that was truncated is read from its beginning.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path, self._offset = path, start
        self._partial, self._dropping, self.grew = b"", False, False

    def read(self) -> list[Line]:
        """Return the complete lines since the last call; a carriage return also ends a line."""
        found: list[Line] = []
        self.grew = False
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self._partial, self._dropping = 0, b"", False
                if size - self._offset > MOST_AT_ONCE:
                    self._offset, self._partial, self._dropping = size - MOST_AT_ONCE, b"", True
                file.seek(self._offset)
                while self._offset < size and (data := file.read(min(CHUNK, size - self._offset))):
                    self._offset, self.grew = self._offset + len(data), True
                    found += self._split(data)
        except OSError:
            return found
        return found

    def rest(self) -> list[Line]:
        """Return the incomplete last line, for a log that stands still, and mark it as read."""
        partial, self._partial = self._partial, b""
        if not partial or self._dropping:
            return []
        self._dropping = True
        return [clean(partial)]

    def _split(self, data: bytes) -> list[Line]:
        *whole, last = re.split(rb"[\r\n]", data)
        found = []
        for piece in whole:
            line, self._partial = (self._partial + piece)[:LONGEST_LINE], b""
            if not self._dropping:
                found.append(clean(line))
            self._dropping = False
        if not self._dropping:
            self._partial = (self._partial + last)[:LONGEST_LINE]
        return found


def clean(raw: bytes) -> Line:
    """Return a line as text, without colours and without the label of its rank."""
    text, stream = _ANSI.sub("", raw.decode(errors="replace")).replace("\0", ""), ""
    if label := _LABEL.match(text):
        stream, text = label["task"] or label["job"] or label["rank"], text[label.end() :]
    elif process := _PROCESS.match(text):
        stream, text = process["name"], text[process.end() :]
    elif rank := _RANK.search(text, 0, 160):
        stream = rank[1]
    return Line(stream, text.rstrip())
