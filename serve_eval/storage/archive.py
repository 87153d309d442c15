"""Archive records that no longer count, such as those of cases that are asked otherwise.

A line has the expectation, the scorer and the versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.storage.file_names import cases_file, list_archived_samples, name_archive_file
from serve_eval.storage.json_files import write_private
from serve_eval.storage.report_file import drop_report


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


class AskedCase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions under which a sample was asked.

    Expectations are hashes, since hold-out sets have lines too.
    """

    id: str
    case: str
    question: str
    expected: str
    scorer: str
    scorer_version: int
    serve_eval: str
    server: str | None = None


_decoder = msgspec.json.Decoder(AskedCase)
_encode = msgspec.json.Encoder().encode


def read_asked_cases(run: Path, task: str) -> dict[str, AskedCase]:
    """Return the conditions under which each sample was last asked, by sample.

    Raises RunFolderError for a damaged line.
    """
    return {line.id: line for line in decode_lines(cases_file(run, task), _decoder)}


def add_asked_cases(run: Path, task: str, lines: Iterable[AskedCase]) -> None:
    """Append lines to those of a task.

    Raises RunFolderError or JournalError if they cannot be written.
    """
    file = cases_file(run, task)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(file, b"".join([*whole_lines(file), *(_encode(line) + b"\n" for line in lines)]))
