"""Declare the argument that names a run folder, or the last one of outputs/ by `latest`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

LATEST = Path("latest")


def name_run(meaning: str) -> Any:
    """Return an argument that names a run folder, with its meaning for the help."""
    return typer.Argument(metavar="RUN", help=meaning, callback=find_run)


def find_run(folder: Path | None) -> Path | None:
    """Return a folder that was given, or for `latest` the one that was written last.

    A folder of that name in the current one takes precedence. Raises RunFolderError if there is
    neither.
    """
    if folder != LATEST or folder.exists():
        return folder
    from serve_eval.evaluation.storage.latest import find_latest

    return find_latest()
