"""Name the folder of a command that was given none."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.storage.latest import OUTPUTS

_claimed: list[Path] = []
"""Folders that this process made and that may still be empty."""


def claim_default_folder(name: str) -> Path:
    """Make a new folder in outputs/, named by the time and `name`, and return it.

    Making it is what keeps two commands of one second apart: the second one gets a number.
    Raises RunFolderError.
    """
    first = folder = OUTPUTS / f"{datetime.now(UTC):%Y%m%d_%H%M%S}_{name}"
    numbers = count(2)
    try:
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        while True:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                break
            folder = first.with_name(f"{first.name}_{next(numbers)}")
    except OSError as error:
        raise RunFolderError(
            f"{OUTPUTS.absolute()}: no folder can be made here: {error.strerror}",
            hint="Choose another folder with -o.",
        ) from error
    _claimed.append(folder.absolute())
    return folder


def drop_empty_folders() -> None:
    """Remove the folders that this process claimed and wrote nothing into, and their parent."""
    while _claimed:
        folder = _claimed.pop()
        with suppress(OSError):  # it holds files
            folder.rmdir()
            folder.parent.rmdir()
