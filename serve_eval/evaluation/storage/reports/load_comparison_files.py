"""Write the result of a comparison at several loads."""

from __future__ import annotations

from pathlib import Path

from serve_eval.evaluation.storage.file_names import LOAD_COMPARISON
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import LoadComparison

LOAD_COMPARISON_SCHEMA = 1


def write_load_comparison(folder: Path, found: LoadComparison) -> None:
    """Write the result. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / LOAD_COMPARISON, pretty_json(found))


def drop_load_comparison(folder: Path) -> None:
    """Remove the result, which describes an earlier state."""
    (folder / LOAD_COMPARISON).unlink(missing_ok=True)
