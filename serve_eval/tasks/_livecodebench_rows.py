"""Read the rows of LiveCodeBench's files, a line at a time: the files have gigabytes of tests.

The tests stay in the file. A row keeps the place of its line, and a program gets the line when it
runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets import source as datasets_source
from serve_eval.errors import DatasetError
from serve_eval.schema import SourceFile
from serve_eval.schema.score import GivenPiece


class _Line(msgspec.Struct):
    """The columns of a row without its tests."""

    question_content: str
    platform: str
    question_id: str
    contest_date: str
    starter_code: str
    difficulty: str
    metadata: str


@dataclass(frozen=True, slots=True)
class ContestProblem:
    """A problem, and the place of its line, which has the tests.

    `function` is the function that tests call; None for standard input.
    """

    question: str
    starter_code: str
    platform: str
    number: str
    date: datetime
    difficulty: str
    function: str | None
    line: GivenPiece


_decode = msgspec.json.Decoder(_Line).decode


def read_problems(path: Path) -> tuple[SourceFile, list[ContestProblem]]:
    """Return a file with its checksum, and its problems.

    Raises DatasetError for a file that is not in the form of the upstream's, or that changed.
    """
    whole, found, at = hashlib.sha256(), [], 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                whole.update(line)
                if line.strip():
                    found.append(_read(path, number, at, line))
                at += len(line)
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    datasets_source.check_sha256(path, whole.hexdigest())
    return SourceFile(path=str(path), sha256=whole.hexdigest()), found


def _read(path: Path, number: int, at: int, line: bytes) -> ContestProblem:
    try:
        row = _decode(line)
        function = json.loads(row.metadata).get("func_name")
        date = datetime.fromisoformat(row.contest_date)
    except (msgspec.MsgspecError, ValueError, AttributeError) as error:
        raise DatasetError(f"{path}:{number}: not a row of LiveCodeBench: {error}") from error
    return ContestProblem(
        question=row.question_content,
        starter_code=row.starter_code,
        platform=row.platform,
        number=row.question_id,
        date=date,
        difficulty=row.difficulty,
        function=function,
        line=GivenPiece(
            path=str(path.absolute()),
            start=at,
            size=len(line),
            sha256=hashlib.sha256(line).hexdigest(),
        ),
    )


def find_files(source: local.Source, folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of a release. Raises DatasetError for one that is missing."""
    for name in names:
        if not (path := folder / name).is_file():
            raise DatasetError(
                f"{source.name} is incomplete: {path} is missing", hint=local.advice(source)
            )
        yield path


def read_line(piece: GivenPiece) -> dict[str, Any]:
    """Return a row with its tests, as they are encoded."""
    with Path(piece.path).open("rb") as file:
        file.seek(piece.start)
        return msgspec.json.decode(file.read(piece.size), type=dict[str, Any])
