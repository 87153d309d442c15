"""Read and write the plan (bisect.json) and the state (bisection.json) of a bisection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_eval.evaluation.storage.file_names import BISECTION, BISECTION_PLAN
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, find_content, find_known
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Bisection

BISECTION_SCHEMA = 1
"""The version of both files that this serve-eval writes, and the newest that it reads."""


def read_bisection_plan(folder: Path) -> dict[str, Any] | None:
    """Return the plan as JSON values without the version, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    return find_content(folder / BISECTION_PLAN, BISECTION_SCHEMA)


def write_bisection_plan(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the plan. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / BISECTION_PLAN, pretty_json({FORMAT_KEY: BISECTION_SCHEMA, **content}))


def find_bisection(folder: Path) -> Bisection | None:
    """Return the state of an earlier session, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    return find_known(folder / BISECTION, Bisection, BISECTION_SCHEMA)


def write_bisection(folder: Path, bisection: Bisection) -> None:
    """Write the state. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / BISECTION, pretty_json(bisection))
