"""Read the files of BFCL: a question and its functions a line, and the answers in another file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError
from serve_eval.tasks._bfcl.categories import CATEGORIES

T = TypeVar("T")


class RowTurn(Struct, frozen=True):
    """A message of a question."""

    role: str
    content: str


class QuestionRow(Struct, frozen=True):
    """A question: the messages of its only turn, and the functions that it offers."""

    id: str
    question: tuple[tuple[RowTurn, ...]]
    function: tuple[dict[str, Any], ...]


class _Answer(Struct, frozen=True):
    id: str
    ground_truth: tuple[dict[str, dict[str, Any]], ...]


class ReadCategory(NamedTuple):
    """The rows of a category, their answers by id, if it has any, and its files."""

    rows: list[QuestionRow]
    answers: Mapping[str, tuple[dict[str, dict[str, Any]], ...]]
    files: tuple[local.DataFile, ...]


def name_file(category: str) -> str:
    """Return the file of a category."""
    return f"BFCL_v4_{category}.json"


def read_category(source: Source, folder: Path, category: str) -> ReadCategory:
    """Return a category. Raises DatasetError for a missing or malformed file."""
    questions = local.read_file(_find(source, folder, name_file(category)))
    rows = _lines(questions, QuestionRow)
    if CATEGORIES[category].wanted != "calls":
        return ReadCategory(rows, {}, (questions,))
    gold = local.read_file(_find(source, folder, f"possible_answer/{name_file(category)}"))
    answers = {one.id: one.ground_truth for one in _lines(gold, _Answer)}
    if lacking := [row.id for row in rows if not answers.get(row.id)]:
        raise DatasetError(f"{gold.path}: no answer to {lacking[0]}", hint=local.advice(source))
    return ReadCategory(rows, answers, (questions, gold))


def _find(source: Source, folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise DatasetError(
            f"{source.name} is incomplete: {folder / name} is missing", hint=local.advice(source)
        )
    return folder / name


def _lines(file: local.DataFile, kind: type[T]) -> list[T]:
    decoder = msgspec.json.Decoder(kind)
    found = []
    for number, line in enumerate(file.content.splitlines(), 1):
        if line.strip():
            try:
                found.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise DatasetError(f"{file.path}:{number}: {error}") from error
    if not found:
        raise DatasetError(f"{file.path}: no rows")
    return found
