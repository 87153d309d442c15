"""Read and write what the runs ask that become a reference."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.evaluation.storage.file_names import TAKEN_PLAN
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, find_known
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Plan

TAKEN_SCHEMA = 1
"""The version of the plan that this serve-eval writes, and the newest that it reads."""


class TakenRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The plan and the number of the runs, and if they are being or were registered."""

    plan: Plan
    runs: int
    registering: bool = False
    registered: bool = False


def read_taken(folder: Path) -> TakenRuns | None:
    """Return what a folder asks, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    return find_known(folder / TAKEN_PLAN, TakenRuns, TAKEN_SCHEMA)


def write_taken(folder: Path, taken: TakenRuns) -> None:
    """Write what a folder asks. Raises RunFolderError, and JournalError for a full disk."""
    write_private(
        folder / TAKEN_PLAN,
        pretty_json({FORMAT_KEY: TAKEN_SCHEMA, **msgspec.structs.asdict(taken)}),
    )
