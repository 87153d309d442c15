"""Parse server-sent events from the pieces that a socket delivers. Pure.

Only `data:` fields are used, and `event:` where it names an error; all others are dropped. Lines
end in `\\n`, `\\r\\n` or `\\r` (WHATWG HTML, section "Server-sent events"). A piece may end
anywhere, even inside a character.
"""

from __future__ import annotations

import re

BOM = b"\xef\xbb\xbf"
"""Byte order mark, which may precede a stream."""
ERROR_EVENT = b"event: error"
"""The payload that stands for an event line that names an error. It is no JSON."""
_ERROR = re.compile(rb"(?:error|exception|fail(?:ed|ure)?|fatal|abort(?:ed)?|cancel(?:l?ed)?)s?$")


class EventLines:
    """Takes bytes and returns the payloads of completed `data:` lines."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._carriage_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the completed payloads in order, with b"" for the blank line after an event."""
        if (
            data[:6] == b"data: "
            and data.find(b"\n") == len(data) - 2
            and data[-1:] == b"\n"
            and b"\r" not in data
            and not self._rest
            and not self._carriage_return
        ):
            return [data[6:-2].strip(), b""]  # nearly every piece is one whole event
        if b"\r" in data or self._carriage_return:
            data = self._unix(data)
        end = data.rfind(b"\n")
        if end < 0:
            self._rest += data
            return []
        head, rest = data[:end], data[end + 1 :]
        if self._rest:
            head = bytes(self._rest) + head
            self._rest.clear()
        self._rest += rest
        return [payload for line in head.split(b"\n") if (payload := _payload(line)) is not None]

    def close(self) -> list[bytes]:
        """Return the payload after the last line end, since a stream may end without one."""
        line = bytes(self._rest)
        self._rest.clear()
        payload = _payload(line) if line else None
        return [] if payload is None else [payload]

    def _unix(self, data: bytes) -> bytes:
        """Return `data` with `\\n` as the only line end.

        A `\\r` at the end of a piece may be half of a `\\r\\n`.
        """
        if self._carriage_return and data[:1] == b"\n":
            data = data[1:]
        self._carriage_return = data[-1:] == b"\r" if data else self._carriage_return
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(line: bytes) -> bytes | None:
    """Return the content of a `data:` line, b"" for a blank line, None for most others."""
    if line[:5] == b"data:":
        return line[5:].strip()
    if line[:6] == b"event:" and _ERROR.search(line[6:].strip().lower()):
        return ERROR_EVENT
    if line[:3] == BOM:
        return _payload(line[3:])
    return b"" if not line.strip() else None
