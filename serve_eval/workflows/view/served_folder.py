"""Open files below a folder for readers who must not leave it.

Each part of a path is opened below the one before, and no link is followed, so that a folder of
another user cannot lead elsewhere, not even while it is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from serve_eval.schema.media_types import EXTENSIONS

KINDS: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".xml": "text/plain; charset=utf-8",
    **{f".{ending}": kind for kind, ending in EXTENSIONS.items()},
}
"""The types of the files that are served, by their suffixes."""


def open_below(folder: Path, parts: list[str]) -> tuple[BinaryIO, str]:
    """Return a file below a folder, opened for reading, and its content type.

    Raises FileNotFoundError for files of other types, names that begin with a dot, links and
    folders, which are not served.
    """
    if not parts or not all(map(_is_plain, parts)):
        raise FileNotFoundError
    kind = KINDS.get(Path(parts[-1]).suffix)
    if kind is None:
        raise FileNotFoundError
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = _open(part, os.O_DIRECTORY, here)
            os.close(here)
            here = below
        file = _open(parts[-1], os.O_NONBLOCK, here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError
    return os.fdopen(file, "rb"), kind


def _is_plain(part: str) -> bool:
    """Return True for the name of a file or folder that is not hidden."""
    return bool(part) and not part.startswith(".") and not set(part) & {"/", "\\", "\0"}


def _open(name: str, flags: int, parent: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=parent)
    except (OSError, ValueError) as error:
        raise FileNotFoundError from error
