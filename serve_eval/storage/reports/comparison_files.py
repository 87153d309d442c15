"""Find the runs of a comparison, and tell its verdicts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.schema import Comparison
from serve_eval.storage.file_names import SIDE_A, SIDE_B
from serve_eval.storage.folder_format import decode_known
from serve_eval.storage.story_files import COMPARE


class _Side(msgspec.Struct):
    """The part of a side that names the folder of a finished run."""

    run: str | None = None


class _Sides(msgspec.Struct):
    a: _Side
    b: _Side


def locate_runs(folder: Path) -> list[tuple[str, Path]]:
    """Return A and B with their run folders, in the comparison's folder or that of a finished run.

    Raises RunFolderError for a file that is missing or damaged, or that a newer serve-eval wrote.
    """
    file = folder / COMPARE.plan
    try:
        sides = decode_known(file, _Sides, COMPARE.version)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    places = ((SIDE_A, sides.a.run), (SIDE_B, sides.b.run))
    return [(side.upper(), Path(run) if run else folder / side) for side, run in places]


def describe_comparison(folder: Path) -> str:
    """Return the verdicts of the comparison in a folder, for a table of its sides; "" for none."""
    found = COMPARE.find(folder, Comparison) if COMPARE.has_plan(folder) else None
    if found is None:
        return ""
    told = ", ".join(f"{one.verdict.task} {one.verdict.outcome.value}" for one in found.tasks)
    return f"{folder}: serve-eval compare judged B against A by pairs: {told}"
