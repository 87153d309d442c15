"""Read and write the files of a check of tool calls: what is asked, and the result."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import TOOLS_PLAN, TOOLS_RESULT
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, find_known
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Plan, ToolCheck, ToolProbe
from serve_eval.shell_words import quote_path

TOOLS_SCHEMA = 1
"""The version of plan and result that this serve-eval writes, and the newest that it reads."""


class ToolsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a folder, its loads, and what the endpoint was found to support."""

    plan: Plan
    loads: tuple[int, ...]
    unsupported: tuple[ToolProbe, ...]
    parameters: tuple[ToolProbe, ...]


def read_tools_plan(folder: Path) -> ToolsPlan | None:
    """Return what a folder asks, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    return find_known(folder / TOOLS_PLAN, ToolsPlan, TOOLS_SCHEMA)


def write_tools_plan(folder: Path, asked: ToolsPlan) -> None:
    """Write what is asked. Raises RunFolderError, and JournalError for a full disk."""
    write_private(
        folder / TOOLS_PLAN,
        pretty_json({FORMAT_KEY: TOOLS_SCHEMA, **msgspec.structs.asdict(asked)}),
    )


def read_tool_check(folder: Path) -> ToolCheck:
    """Return the result in a folder. Raises RunFolderError for a folder without a readable one."""
    found = find_known(folder / TOOLS_RESULT, ToolCheck, TOOLS_SCHEMA)
    if found is None:
        raise RunFolderError(
            f"{folder} has no result of `serve-eval tools`",
            hint=f"Finish it first: serve-eval tools ENDPOINT -o {quote_path(folder)}",
        )
    return found


def write_tool_check(folder: Path, found: ToolCheck) -> None:
    """Write the result. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / TOOLS_RESULT, pretty_json(found))


def drop_tool_check(folder: Path) -> None:
    """Remove the result, which describes an earlier state."""
    (folder / TOOLS_RESULT).unlink(missing_ok=True)
