"""Point outputs/latest to the folder below outputs/ that was written last.

It is a symbolic link, or a file with the name of the folder where links are not possible. It is
replaced as a whole, so a reader finds the old folder or the new one.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.whole_file import write_whole

OUTPUTS, LATEST = Path("outputs"), "latest"
"""The folder of all default output folders, and the name that points to the last one of them."""


def point_to(folder: Path) -> None:
    """Let outputs/latest point to the folder in outputs/ that is or holds this one, if any does.

    A folder of the user that has this name stays. Errors are ignored, since a run does not depend
    on it.
    """
    with suppress(OSError, ValueError):  # ValueError: it is elsewhere
        name = folder.resolve().relative_to(OUTPUTS.resolve()).parts[0]
        pointer = OUTPUTS / LATEST
        if name == LATEST or (pointer.is_dir() and not pointer.is_symlink()):
            return
        new = OUTPUTS / f".{LATEST}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            try:
                new.symlink_to(name, target_is_directory=True)
            except OSError:
                write_whole(new, name.encode())
            new.replace(pointer)
        finally:
            new.unlink(missing_ok=True)


def find_latest() -> Path:
    """Return the folder that outputs/latest points to.

    Raises RunFolderError if it points to nothing that exists.
    """
    pointer = OUTPUTS / LATEST
    if not pointer.exists():
        raise RunFolderError(
            f"{LATEST}: {OUTPUTS}/ has no run that was written here",
            hint="Name the folder of a run.",
        )
    if pointer.is_symlink():
        return OUTPUTS / pointer.readlink()
    if pointer.is_dir():
        return pointer
    folder = OUTPUTS / pointer.read_text(encoding="utf-8").strip()
    if not folder.is_dir():
        raise RunFolderError(f"{pointer} names {folder}, which is not there")
    return folder
