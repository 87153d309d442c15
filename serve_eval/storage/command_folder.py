"""Claim and lock the folder of a command, to which `latest` then points.

It is a symbolic link, or a file with the name of the folder where links are not possible. It is
replaced as a whole, so a reader finds the old folder or the new one.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

from serve_eval import whole_file
from serve_eval.errors import RunFolderError
from serve_eval.storage.file_names import LOCK_FILE
from serve_eval.storage.story_files import STORIES
from serve_eval.whole_file import PARTIAL, name_partial, write_whole

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


PROBE = ".replaced"
"""File by which a folder is tried before a run; it exists for a moment."""
LEFT = frozenset({LOCK_FILE, PROBE, f"{PROBE}{PARTIAL}"})
"""Files that `hold` leaves in a folder whose command is killed at once."""
OTHER_FOLDER = "Choose another folder with -o, on another file system."
_LOG = logging.getLogger(__name__)


@contextmanager
def hold(path: Path, sign: str, kind: str = "run", *, writes: bool = True) -> Iterator[None]:
    """Create the folder if necessary, and lock it until the end of the block.

    A killed process releases the lock. `sign` is the file that marks a folder of this `kind`; the
    lock names it too, so that a folder is known however early its first command was killed. Raises
    RunFolderError if another process uses the folder, or if it holds other files and neither has
    `sign`. outputs/latest then points to it, if the folder is new or the caller `writes` answers.
    """
    new = not path.exists() or _is_empty(path)
    with occupy(path, sign, kind):
        _check_renames(path)
        if new or writes:
            point_to(path)
        yield


@contextmanager
def occupy(path: Path, sign: str, kind: str = "") -> Iterator[None]:
    """Lock a folder, which may hold files of others, until the end of the block.

    `sign` is as for `hold`. Raises RunFolderError as `hold`, but not for what else is there,
    except with a `kind`.
    """
    lock_file = _open_lock(path, sign if kind else None, kind)
    locked = True
    try:
        locked = _take(path, lock_file)
        whole_file.note_holder(lock_file, sign, locked=locked)
        yield
    finally:
        if not locked:
            whole_file.forget_holder(lock_file)
        os.close(lock_file)


def read_claim(path: Path) -> str:
    """Return the sign of the command that locked a folder last ("": none did)."""
    try:
        lock_file = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        return whole_file.read_mark(lock_file)
    finally:
        os.close(lock_file)


def _is_empty(path: Path) -> bool:
    with suppress(OSError):
        return not any(path.iterdir())
    return False


def _open_lock(path: Path, sign: str | None, kind: str) -> int:
    """Create the folder and its lock file, and return that open. Raises RunFolderError.

    Without a `sign`, the folder may hold other files.
    """
    with _explain_unusable(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sign is None or _is_free(path, sign):
            return os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    raise RunFolderError(f"{path} is not empty and holds no {kind}", hint=OTHER_FOLDER)


def check_free(path: Path, sign: str, kind: str) -> None:
    """Raise RunFolderError if `hold` would refuse a folder. Nothing is written."""
    with _explain_unusable(path):
        if not path.exists() or _is_free(path, sign):
            check_unused(path)
            return
    raise RunFolderError(f"{path} is not empty and holds no {kind}", hint=OTHER_FOLDER)


@contextmanager
def _explain_unusable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RunFolderError(
            f"{path}: cannot be used as a run folder: {why}", hint=OTHER_FOLDER
        ) from error


def _is_free(path: Path, sign: str) -> bool:
    """Return True if a folder is that of a command, or holds only what one begins with."""
    known = (path / sign).exists() or read_claim(path) == sign
    begun = {*LEFT, f"{sign}{PARTIAL}"}
    return known or all(one.name in begun for one in path.iterdir())


def _take(path: Path, lock_file: int) -> bool:
    """Lock a folder, and return False if its file system has no locks.

    Then the process that its lock file names must have ended. Raises RunFolderError.
    """
    holder = whole_file.read_holder(lock_file)
    try:
        locked = whole_file.lock(lock_file)
    except BlockingIOError as error:
        raise RunFolderError(
            f"{path} is in use by another run (process {holder or 'unknown'})",
            hint="Wait until it ends, or choose another folder with -o.",
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be locked: {error.strerror}", hint=OTHER_FOLDER
        ) from error
    if not locked:
        if whole_file.may_live(holder):
            raise RunFolderError(
                f"{path} is in use by another run (process {holder})",
                hint=f"If that process has ended, remove {path / LOCK_FILE}.",
            )
        _LOG.warning(
            "warning: %s: its file system has no locks (flock), so start no second command there",
            path,
        )
    return locked


def _check_renames(path: Path) -> None:
    """Raise RunFolderError if files of a folder cannot be replaced, before anything is asked."""
    probe = path / PROBE
    try:
        write_whole(probe, b"1")
        write_whole(probe, b"2")
    except OSError as error:
        raise RunFolderError(
            f"{path}: its files cannot be replaced in one step: {error.strerror}; a kill could lose"
            " results",
            hint=OTHER_FOLDER,
        ) from error
    finally:
        for left in (probe, name_partial(probe)):
            with suppress(OSError):
                left.unlink(missing_ok=True)


def check_unused(path: Path) -> None:
    """Raise RunFolderError if a run goes on in a folder that is only read."""
    try:
        lock = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if not whole_file.lock(lock, shared=True) and whole_file.may_live(
            whole_file.read_holder(lock)
        ):
            raise BlockingIOError
    except BlockingIOError as error:
        raise RunFolderError(
            f"{path} is in use by another run", hint="Wait until it ends."
        ) from error
    finally:
        os.close(lock)


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
