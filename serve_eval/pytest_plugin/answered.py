"""Say how many samples of a run without a report were answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PARTS = ("", "a", "b")
"""Folders with answers: a run, or the sides of a comparison."""


def list_counts(folder: Path) -> list[str]:
    """Return what was answered of each task of a run, or of the sides of a comparison."""
    return [line for name in _PARTS for line in _count_in_run(folder / name, name)]


def _count_in_run(folder: Path, side: str) -> Iterator[str]:
    """Yield what was answered of each task of a run, or of a side of a comparison."""
    from serve_eval.errors import RunFolderError
    from serve_eval.series.read_runs import count_answers

    try:
        counts = count_answers(folder)
    except (OSError, RunFolderError):
        return
    by = f" by {side.upper()}" if side else ""
    for task, answered, planned in counts:
        yield f"answered so far{by}: {answered} of {planned} of {task}"
