"""Write whole files that only their user can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.whole_file import replace_file


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, readable only by the user.

    Raises JournalError for a full disk, else RunFolderError.
    """
    with replace_private(path) as file:
        file.write(data)


@contextmanager
def replace_private(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` if the block succeeds. Raises as `write_private` does."""
    try:
        with replace_file(path) as file:
            yield file
    except OSError as error:
        if error.errno in FULL_DISK:
            raise JournalError(
                f"{path}: cannot write: {error.strerror}", hint=NO_ROOM_HINT
            ) from error
        raise RunFolderError(f"{path}: cannot write: {error.strerror}") from error


def pretty_json(value: object) -> bytes:
    """Return JSON for people, with two spaces of indentation and a final newline.

    Non-finite numbers become null.
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def read_written_text(path: Path) -> str:
    """Return the text of a file that this command has just written."""
    return path.read_text(encoding="utf-8")
