"""Read the rows of BioChatter's result files.

A row has the model, the name of the case, the score, the iterations and the hash. A score is
`s1;s2;.../max`, with one value for each iteration, or in older rows `mean/max`. Here it is a share
of the points, between 0 and 1.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_eval.errors import DatasetError

COLUMNS = ("model_name", "subtask", "score", "iterations", "md5_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One result: the share of the points in each iteration, or their mean in an older row."""

    model: str
    subtask: str
    md5: str
    scores: tuple[float, ...]
    iterations: int
    date: str
    file: Path

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @property
    def each(self) -> bool:
        """True if there is a score for each iteration."""
        return len(self.scores) == self.iterations


def read(file: Path) -> list[ResultRow]:
    """Return the rows of a result file. Raises DatasetError, with the line."""
    try:
        with file.open(encoding="utf-8", newline="") as content:
            reader = csv.DictReader(content)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(
                    f"{file}: not a result file: there is no column {', '.join(missing)}"
                )
            return [_row(file, reader.line_num, raw) for raw in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{file}: cannot be read: {error}") from error


def _row(file: Path, line: int, raw: Mapping[str, Any]) -> ResultRow:
    try:
        scores, _, most = raw["score"].partition("/")
        shares = tuple(float(score) / float(most) for score in scores.split(";"))
        iterations = int(raw["iterations"])
    except (ValueError, ZeroDivisionError, AttributeError, TypeError) as error:
        raise DatasetError(
            f"{file}:{line}: score {raw.get('score')!r}, iterations {raw.get('iterations')!r}: "
            "expected s1;s2;.../max or mean/max, and a number"
        ) from error
    if not all(0.0 <= share <= 1.0 for share in shares) or len(shares) not in (1, iterations):
        raise DatasetError(
            f"{file}:{line}: score {raw['score']!r} is not valid for {iterations} iterations"
        )
    return ResultRow(
        model=raw["model_name"],
        subtask=raw["subtask"],
        md5=raw["md5_hash"],
        scores=shares,
        iterations=iterations,
        date=raw.get("datetime") or "",
        file=file,
    )
