"""Read and write the files of a check over loads: what is asked, and the result."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.evaluation.storage.file_names import LOAD_PLAN, LOAD_RESULT, PAGE_FILE
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, find_known
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import LoadSurface, Plan

LOAD_SCHEMA = 1
"""The version of plan and result that this serve-eval writes, and the newest that it reads."""


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a folder and its loads, asked all or by bisection."""

    plan: Plan
    loads: tuple[int, ...]
    bisect: bool


def read_load_plan(folder: Path) -> LoadPlan | None:
    """Return what a folder asks, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    return find_known(folder / LOAD_PLAN, LoadPlan, LOAD_SCHEMA)


def write_load_plan(folder: Path, asked: LoadPlan) -> None:
    """Write what is asked. Raises RunFolderError, and JournalError for a full disk."""
    write_private(
        folder / LOAD_PLAN, pretty_json({FORMAT_KEY: LOAD_SCHEMA, **msgspec.structs.asdict(asked)})
    )


def write_load(folder: Path, found: LoadSurface) -> None:
    """Write the result. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / LOAD_RESULT, pretty_json(found))


def drop_load(folder: Path) -> None:
    """Remove the result and its page, which describe an earlier state."""
    for name in (LOAD_RESULT, PAGE_FILE):
        (folder / name).unlink(missing_ok=True)
