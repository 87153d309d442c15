"""Read and write the files of a check of invariants, such as canary replies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.schema import CanaryRecord
from serve_eval.storage.file_names import CANARY_LOG, CHUNKS_FILE, PRESSURE_FILE, SALT_FILE
from serve_eval.storage.journal import NO_ROOM_HINT
from serve_eval.storage.json_files import pretty_json, write_private


class CacheSalt(msgspec.Struct, frozen=True, kw_only=True):
    """The salt from which each prompt gets a cache_salt of its own.

    `value` is None if none is sent, for the reason in `why`.
    """

    value: str | None
    why: str = ""


class PressureLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One filling of the cache: the tokens of other prompts that were `wanted` and `filled`.

    `seed` is that of the prompts.
    """

    wanted: int
    filled: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the pass that asks the old prompts after it."""
        return f"pressure_{self.wanted}"


class PressureLog(msgspec.Struct, frozen=True, kw_only=True):
    """The fillings so far, and the tokens for which the cache has room (None: not known).

    `skipped` is the reason why there are none; "": none yet.
    """

    levels: tuple[PressureLevel, ...] = ()
    capacity: int | None = None
    ended: bool = False
    skipped: str = ""


def find_chunks(folder: Path, of: Any) -> dict[str, Any]:
    """Return the lengths that earlier sessions settled on, by size, converted to the type `of`.

    Return none if they cannot be read.
    """
    try:
        return msgspec.json.decode((folder / CHUNKS_FILE).read_bytes(), type=dict[str, of])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def write_chunks(folder: Path, chunks: Mapping[str, object]) -> None:
    """Write the lengths that this session settled on.

    Raises RunFolderError, and JournalError for a full disk.
    """
    write_private(folder / CHUNKS_FILE, pretty_json(chunks))


def find_salt(folder: Path) -> CacheSalt | None:
    """Return the salt that an earlier session settled on, or None if there is none to read."""
    try:
        return msgspec.json.decode((folder / SALT_FILE).read_bytes(), type=CacheSalt)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_salt(folder: Path, salt: CacheSalt) -> None:
    """Write the salt. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / SALT_FILE, pretty_json(salt))


def read_pressure(folder: Path) -> PressureLog:
    """Return the fillings of earlier sessions; none if they cannot be read."""
    try:
        return msgspec.json.decode((folder / PRESSURE_FILE).read_bytes(), type=PressureLog)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return PressureLog()


def write_pressure(folder: Path, log: PressureLog) -> None:
    """Write the fillings so far. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / PRESSURE_FILE, pretty_json(log))


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
