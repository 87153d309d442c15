"""Read and write the plan (compare.json) and the result (comparison.json) of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import (
    COMPARISON,
    COMPARISON_PLAN,
    PAGES,
    SIDE_A,
    SIDE_B,
)
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, decode_known, find_content
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Comparison

COMPARISON_SCHEMA = 1
"""The version of both files that this serve-eval writes, and the newest that it reads."""


class _Side(msgspec.Struct):
    """The part of a side that names the folder of a finished run."""

    run: str | None = None


class _Sides(msgspec.Struct):
    a: _Side
    b: _Side


def is_comparison(folder: Path) -> bool:
    """Return True if a folder is that of a comparison."""
    return (folder / COMPARISON_PLAN).exists()


def locate_runs(folder: Path) -> list[tuple[str, Path]]:
    """Return A and B with their run folders, in the comparison's folder or that of a finished run.

    Raises RunFolderError for a file that is missing or damaged, or that a newer serve-eval wrote.
    """
    file = folder / COMPARISON_PLAN
    try:
        sides = decode_known(file, _Sides, COMPARISON_SCHEMA)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    places = ((SIDE_A, sides.a.run), (SIDE_B, sides.b.run))
    return [(side.upper(), Path(run) if run else folder / side) for side, run in places]


def read_comparison_plan(folder: Path) -> dict[str, Any] | None:
    """Return the plan as JSON values without the version, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    return find_content(folder / COMPARISON_PLAN, COMPARISON_SCHEMA)


def write_comparison_plan(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the plan of a comparison. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / COMPARISON_PLAN, pretty_json({FORMAT_KEY: COMPARISON_SCHEMA, **content}))


def find_comparison(folder: Path) -> Comparison | None:
    """Return the result of an earlier session, or None if there is no readable one.

    Raises RunFolderError for a result that a newer serve-eval wrote.
    """
    try:
        return decode_known(folder / COMPARISON, Comparison, COMPARISON_SCHEMA)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def describe_comparison(folder: Path) -> str:
    """Return the verdicts of the comparison in a folder, for a table of its sides; "" for none."""
    found = find_comparison(folder) if is_comparison(folder) else None
    if found is None:
        return ""
    told = ", ".join(f"{one.verdict.task} {one.verdict.outcome.value}" for one in found.tasks)
    return f"{folder}: serve-eval compare judged B against A by pairs: {told}"


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write the result. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / COMPARISON, pretty_json(comparison))


def drop_comparison(folder: Path) -> None:
    """Remove the result and its pages, which describe an earlier state."""
    for name in (COMPARISON, *PAGES):
        (folder / name).unlink(missing_ok=True)
