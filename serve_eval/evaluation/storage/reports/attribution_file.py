"""Write attribution.json, the results of asking each worker separately, and keep their faces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from serve_eval.evaluation.storage.file_names import ATTRIBUTION_FACES, ATTRIBUTION_FILE
from serve_eval.evaluation.storage.folder_format import Versioned, decode_known
from serve_eval.evaluation.storage.private_files import (
    pretty_json,
    write_private,
)

ATTRIBUTION_SCHEMA = 1
"""The version that this serve-eval writes, and the newest that it replaces."""


def check_attribution(run: Path) -> None:
    """Raise RunFolderError if a newer serve-eval wrote the file, since it would be lost.

    A damaged file may be replaced.
    """
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        decode_known(run / ATTRIBUTION_FILE, Versioned, ATTRIBUTION_SCHEMA)


def write_attribution(run: Path, told: object) -> None:
    """Write the results of the workers. Raises RunFolderError, and JournalError for a full disk."""
    write_private(run / ATTRIBUTION_FILE, pretty_json(told))


def make_faces_folder(run: Path) -> Path:
    """Return the folder in a run for the page and the files of CI, which the run has of its own."""
    folder = run / ATTRIBUTION_FACES
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
