"""Read and write cases/<task>.jsonl, which records how each case was asked.

A line has the expectation, the scorer and the versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from serve_eval.storage.archive import decode_lines, whole_lines
from serve_eval.storage.file_names import cases_file
from serve_eval.storage.private_files import write_private


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
