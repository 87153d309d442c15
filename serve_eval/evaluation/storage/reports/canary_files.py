"""Read and write the files of a canary pass: its plan with the seed, the replies and the result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.evaluation.storage.file_names import CANARIES, CANARY_LOG, CANARY_PLAN
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, find_known
from serve_eval.evaluation.storage.journal import NO_ROOM_HINT
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import CanaryRecord, CanaryResult

CANARY_SCHEMA = 1
"""The version of plan and result that this serve-eval writes, and the newest that it reads."""


class CanaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The seed of the codes, and what they are sent to.

    `endpoint` is the launcher of the plan with its options, and `base_url` the address.
    `chat`, `texts` and `tools` say which forms of requests the endpoint takes. Chats have the
    fields `no_thoughts`, which switch thoughts off, or `room` more tokens for them. `rehearsal`:
    the stand-in answers.
    """

    seed: str
    requests: int
    in_flight: int
    model: str | None
    endpoint: str
    base_url: str
    chat: bool
    texts: bool
    tools: bool
    room: int = 0
    no_thoughts: Mapping[str, Any] = {}
    rehearsal: bool = False


class _SavedCanaries(msgspec.Struct):
    plan: CanaryPlan


def find_canary_plan(folder: Path) -> CanaryPlan | None:
    """Return the plan of a folder, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    found = find_known(folder / CANARY_PLAN, _SavedCanaries, CANARY_SCHEMA)
    return None if found is None else found.plan


def write_canary_plan(folder: Path, plan: CanaryPlan) -> None:
    """Write the plan. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / CANARY_PLAN, pretty_json({FORMAT_KEY: CANARY_SCHEMA, "plan": plan}))


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


def write_canaries(folder: Path, found: CanaryResult) -> None:
    """Write the result. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / CANARIES, pretty_json(found))


def drop_canaries(folder: Path) -> None:
    """Remove the result, which describes an earlier state."""
    (folder / CANARIES).unlink(missing_ok=True)
