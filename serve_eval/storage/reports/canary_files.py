"""Read and write the replies of a canary pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.schema import CanaryRecord
from serve_eval.storage.file_names import CANARY_LOG
from serve_eval.storage.journal import NO_ROOM_HINT


def read_canary_log(folder: Path) -> dict[str, CanaryRecord]:
    """Return the replies so far, by request; an incomplete last line is skipped.

    Raises RunFolderError for a damaged line.
    """
    file, found = folder / CANARY_LOG, dict[str, CanaryRecord]()
    if not file.exists():
        return found
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = msgspec.json.decode(line, type=CanaryRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{file}:{number}: a damaged record: {error}") from error
        before = found.get(record.id)
        if before is not None:
            record = msgspec.structs.replace(record, failures=before.failures + record.failures)
        found[record.id] = record
    return found


class CanaryLog:
    """The replies of a pass, in a file that is open for writing."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def append(self, record: CanaryRecord) -> None:
        """Write one record. Raises JournalError."""
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            raise JournalError(
                f"{self._path}: cannot write: {error.strerror}", hint=NO_ROOM_HINT
            ) from error


@contextmanager
def open_canary_log(folder: Path) -> Iterator[CanaryLog]:
    """Open the replies of a folder for more of them, after dropping an incomplete last line."""
    path = folder / CANARY_LOG
    content = path.read_bytes() if path.exists() else b""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
    with file:
        file.truncate(content.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        yield CanaryLog(file, path)
