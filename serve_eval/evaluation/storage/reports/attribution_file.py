"""Write attribution.json, what asking each worker by itself told."""

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
"""The version of the file that this version writes, and the newest that it replaces."""


def check_attribution(run: Path) -> None:
    """Raise RunFolderError where a newer serve-eval wrote the file: it would be lost. A damaged one
    may be replaced.
    """
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        decode_known(run / ATTRIBUTION_FILE, Versioned, ATTRIBUTION_SCHEMA)


def write_attribution(run: Path, told: object) -> None:
    """Write what the workers told. Raises RunFolderError, and JournalError for a full disk."""
    write_private(run / ATTRIBUTION_FILE, pretty_json(told))


def attribution_text(run: Path) -> str:
    """Return what was just written, as it stands in the file."""
    return read_written_text(run / ATTRIBUTION_FILE)
