"""Write whole files that only their user can read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.evaluation.storage.journal import FULL_DISK, NO_ROOM_HINT


def private_file(path: Path) -> BinaryIO:
    """Open a new, empty file for writing that only the user can read.

    Follows no link, since a folder from someone else may contain one. Raises OSError.
    """
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb"
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, readable only by the user.

    Raises JournalError for a full disk, else RunFolderError.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with private_file(partial) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
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
