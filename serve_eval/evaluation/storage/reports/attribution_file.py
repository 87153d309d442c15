"""Write attribution.json, the results of asking each worker separately."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from serve_eval.evaluation.storage.file_names import ATTRIBUTION_FILE
from serve_eval.evaluation.storage.folder_format import Versioned, decode_known
from serve_eval.evaluation.storage.private_files import (
    pretty_json,
    read_written_text,
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


def attribution_text(run: Path) -> str:
    """Return the text of the file that was just written."""
    return read_written_text(run / ATTRIBUTION_FILE)
