"""Point outputs/latest to the folder below outputs/ that was written last.

It is a symbolic link, or a file with the name of the folder where links are not possible. It is
replaced as a whole, so a reader finds the old folder or the new one.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from serve_eval.errors import RunFolderError
from serve_eval.storage.story_files import STORIES
from serve_eval.whole_file import write_whole

OUTPUTS, LATEST = Path("outputs"), "latest"
"""The folder of all default output folders, and the name that points to the last one of them."""
_PLANS: Final = tuple({story.plan for story in STORIES if story.plan})
_RESULTS: Final = tuple({story.result for story in STORIES if story.result})


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


def find_last_below(folder: Path) -> Path | None:
    """Return the folder directly below that a command wrote last, if this one only holds such.

    None: the folder is that of a command itself, or no folder below it is. The last one is that
    whose plan, or else its result, is newest.
    """
    if _find_written(folder) is not None:
        return None
    below = (one for one in folder.glob("*/") if not one.is_symlink())
    written = [(time, str(one)) for one in below if (time := _find_written(one)) is not None]
    return Path(max(written)[1]) if written else None


def _find_written(folder: Path) -> float | None:
    """Return when a command began in a folder; None if none did."""
    for names in (_PLANS, _RESULTS):
        found = [file.stat().st_mtime for name in names if (file := folder / name).is_file()]
        if found:
            return max(found)
    return None


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
