"""Tell a journal that holds only failures, which no plan needs, from one with answers."""

from __future__ import annotations

from pathlib import Path

import msgspec


class _Ending(msgspec.Struct):
    """The part of a record that says that its sample failed."""

    failure: msgspec.Raw = msgspec.Raw()


_ending = msgspec.json.Decoder(_Ending)


def holds_more_than_failures(journal: Path) -> bool:
    """Return True if a line of a journal is no failure, or cannot be read.

    A torn last line counts as nothing: its sample is asked again. False if there is no journal.
    """
    try:
        with journal.open("rb") as lines:
            return any(line.endswith(b"\n") and not _is_failure(line) for line in lines)
    except FileNotFoundError:
        return False


def _is_failure(line: bytes) -> bool:
    try:
        return bytes(_ending.decode(line).failure) not in (b"", b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
