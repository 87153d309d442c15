"""Read and write the plan of the runs that become a reference."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.evaluation.storage.file_names import TAKEN_PLAN
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, find_known
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Plan

TAKEN_SCHEMA = 1
"""The version of the plan that this serve-eval writes, and the newest that it reads."""


class _TakenPlan(msgspec.Struct, frozen=True):
    plan: Plan


def read_taken_plan(folder: Path) -> Plan | None:
    """Return the plan of a folder, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    found = find_known(folder / TAKEN_PLAN, _TakenPlan, TAKEN_SCHEMA)
    return None if found is None else found.plan


def write_taken_plan(folder: Path, plan: Plan) -> None:
    """Write the plan of a folder. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / TAKEN_PLAN, pretty_json({FORMAT_KEY: TAKEN_SCHEMA, "plan": plan}))
