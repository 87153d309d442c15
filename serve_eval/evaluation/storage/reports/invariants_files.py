"""Read and write the files of a folder of invariants: the plan, the prompts' lengths, and the
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import CHUNKS_FILE, INVARIANTS, INVARIANTS_PLAN
from serve_eval.evaluation.storage.folder_format import FORMAT_KEY, decode_known
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Invariants, Plan

INVARIANTS_SCHEMA = 1
"""The version of plan and result that this version writes, and the newest that it reads."""


class _Saved(msgspec.Struct):
    plan: Plan


def read_invariants_plan(folder: Path) -> Plan | None:
    """Return the plan of a folder; None for a new one.

    Raises RunFolderError for a file that is damaged, and for one that a newer serve-eval wrote.
    """
    file = folder / INVARIANTS_PLAN
    try:
        return decode_known(file, _Saved, INVARIANTS_SCHEMA).plan if file.exists() else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint="Use another folder with -o."
        ) from error


def write_invariants_plan(folder: Path, plan: Plan) -> None:
    """Write down what is asked. Raises RunFolderError, and JournalError for a full disk."""
    write_private(
        folder / INVARIANTS_PLAN, pretty_json({FORMAT_KEY: INVARIANTS_SCHEMA, "plan": plan})
    )


def find_chunks(folder: Path, of: Any) -> dict[str, Any]:
    """Return the lengths that earlier sessions settled on, by size, each `of` that type; none that
    cannot be read.
    """
    try:
        return msgspec.json.decode((folder / CHUNKS_FILE).read_bytes(), type=dict[str, of])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def write_chunks(folder: Path, chunks: Mapping[str, object]) -> None:
    """Write the lengths that this session settled on. Raises RunFolderError, and JournalError for a
    full disk.
    """
    write_private(folder / CHUNKS_FILE, pretty_json(chunks))


def write_invariants(folder: Path, found: Invariants) -> None:
    """Write the result. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / INVARIANTS, pretty_json(found))


def drop_invariants(folder: Path) -> None:
    """Remove the result, which tells of an earlier state."""
    (folder / INVARIANTS).unlink(missing_ok=True)
