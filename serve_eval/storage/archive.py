"""Move records that no longer count from a task's files to archive/<time>/ of the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.storage.file_names import list_archived_samples, name_archive_file
from serve_eval.storage.private_files import write_private
from serve_eval.storage.reports.report_file import drop_report


class _Record(msgspec.Struct):
    """The part of a line that names its sample."""

    id: str


_record = msgspec.json.Decoder(_Record)
T = TypeVar("T")


def archive(run: Path, stamp: str, file: Path, stale: Callable[[str], bool]) -> None:
    """Move the lines of stale samples to the archive.

    The lines are in the archive before they leave the file. The report, which has them, is removed
    first. Raises RunFolderError for a damaged
    line, and RunFolderError or JournalError if a file cannot be written.
    """
    moved: list[bytes] = []
    kept: list[bytes] = []
    for record, line in zip(decode_lines(file, _record), whole_lines(file), strict=True):
        (moved if stale(record.id) else kept).append(line)
    if not moved:
        return
    drop_report(run)
    target = name_archive_file(run, stamp, file)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(target, b"".join(moved))
    write_private(file, b"".join(kept))


def count_archived(run: Path, task: str) -> int:
    """Count the records of a task in the archive."""
    return sum(file.read_bytes().count(b"\n") for file in list_archived_samples(run, task))


def whole_lines(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, or none if the file does not exist.

    Skips an incomplete last line, which a killed process leaves behind.
    """
    if file.exists():
        with file.open("rb") as content:
            yield from (line for line in content if line.endswith(b"\n"))


def decode_lines(file: Path, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    """Yield the decoded complete lines of a file. Raises RunFolderError for a damaged line."""
    for number, line in enumerate(whole_lines(file), 1):
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(
                f"{file}:{number}: a damaged record: {error}",
                hint="Delete that line: its sample is then asked again.",
            ) from error
