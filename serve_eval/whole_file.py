"""Replace a file whole or not at all, so that a kill at any moment leaves the old or the new one.

The new content is written to a partial file, forced to disk and renamed. Only this module
opens a file that may exist for writing, except for files that only grow
(tests/storage/test_journal.py lists them).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from serve_eval.file_system import force_to_disk, rename_over

PARTIAL = ".partial"
"""Ending of the name of a file that is still being written."""


def open_partial(path: Path, mode: int = 0o600) -> BinaryIO:
    """Open an empty partial file, whose content `put_in_place` gives to `path`.

    Follows no link, since a folder from someone else may contain one. By default only the user can
    read it. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    return os.fdopen(os.open(name_partial(path), flags, mode), "wb")


def name_partial(path: Path) -> Path:
    """Return the path of the partial file for the new content of `path`."""
    return path.with_name(path.name + PARTIAL)


def put_in_place(file: BinaryIO, path: Path) -> None:
    """Force an open partial file to disk and give it the name `path`. Raises OSError.

    More can be appended to it afterwards.
    """
    file.flush()
    force_to_disk(file.fileno())
    rename_over(name_partial(path), path)


@contextmanager
def replace_file(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` if the block succeeds. Raises OSError."""
    with open_partial(path, mode) as file:
        try:
            yield file
            put_in_place(file, path)
        except BaseException:
            with suppress(OSError):
                name_partial(path).unlink(missing_ok=True)
            raise


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all. Raises OSError."""
    with replace_file(path, mode) as file:
        file.write(data)


@contextmanager
def replace_named_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces one that a person named, if the block succeeds. Raises OSError.

    A link stays, and so do the permissions of a file that exists. What cannot be replaced is
    written in place: a pipe, a device, a mounted file, a file in a folder that cannot be written.
    """
    place, exists = Path(os.path.realpath(path)), path.exists()
    mode = path.stat().st_mode if exists else stat.S_IFREG | 0o666
    fixed = exists and (os.path.ismount(place) or not os.access(place.parent, os.W_OK))
    if fixed or not stat.S_ISREG(mode):
        with path.open("wb") as file:
            yield file
    else:
        with replace_file(place, stat.S_IMODE(mode)) as file:
            yield file


def write_named_file(path: Path, data: bytes) -> None:
    """Write a file that a person named, as `replace_named_file` does. Raises OSError."""
    with replace_named_file(path) as file:
        file.write(data)
