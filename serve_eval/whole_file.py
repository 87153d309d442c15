"""Replace a file whole or not at all, so that a kill at any moment leaves the old or the new one.

The new content is written to a partial file, forced to disk and renamed. Only this module
opens a file that may exist for writing, except for files that only grow
(tests/storage/test_journal.py lists them).

NFS, Lustre, FUSE and mounts of containers may refuse to lock, to force to disk or to rename over a
file. If a step is not needed for safety, the write goes on without it. Errors name the call, since
"Operation not permitted" alone says too little.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

CANNOT = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOTTY}
)
"""Errors of a call that a file system does not have."""
USED = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""Errors of a lock that another process holds."""


def force_to_disk(file: int) -> None:
    """Force an open file to disk, where the file system can. Raises OSError that names the call."""
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in CANNOT:
            raise name_call(error, "fsync") from error


def rename_over(old: Path, new: Path) -> None:
    """Give a file the name of another one in one step. Raises OSError that names the call."""
    try:
        old.replace(new)
    except OSError as error:
        raise name_call(error, "rename") from error


def lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting.

    Returns False if the file system has no locks. Raises BlockingIOError if another process holds
    it, else OSError that names the call.
    """
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in USED:
            raise BlockingIOError(error.errno, error.strerror) from error
        if error.errno not in CANNOT:
            raise name_call(error, "flock") from error
        return False
    return True


def note_holder(file: int, mark: str, *, locked: bool) -> None:
    """Write into a lock file which process holds it for what (`mark`).

    Without a lock, also on which machine.
    """
    words = str(os.getpid()) if locked else f"{os.getpid()} {socket.gethostname()}"
    _write_note(file, words, mark)


def forget_holder(file: int) -> None:
    """Remove the process of `note_holder`, where no lock shows that it has ended."""
    with suppress(OSError):
        _write_note(file, "", read_mark(file))


def read_holder(file: int) -> str:
    """Return the process that a lock file names, or an empty text."""
    return _read_note(file)[0]


def read_mark(file: int) -> str:
    """Return the mark of the process that held a lock file last, or an empty text."""
    return _read_note(file)[1]


def _write_note(file: int, holder: str, mark: str) -> None:
    """Write both lines in one call, so that a kill leaves the old ones or the new ones."""
    note = f"{holder}\n{mark}\n".encode()
    os.pwrite(file, note, 0)
    os.ftruncate(file, len(note))


def _read_note(file: int) -> tuple[str, str]:
    lines: list[str] = []
    with suppress(OSError):
        lines = os.pread(file, 600, 0).decode(errors="replace").split("\n")
    holder, mark = [*lines, "", ""][:2]
    return holder.strip(), mark.strip()


def may_live(holder: str) -> bool:
    """Return True if the process that an unlocked lock file names may still run.

    A process of another machine may; one of this machine is asked for.
    """
    pid, _, host = holder.partition(" ")
    if not host or not pid.isdecimal() or int(pid) == os.getpid():
        return False
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def name_call(error: OSError, call: str) -> OSError:
    """Return an error of the same kind whose text names the call."""
    return OSError(error.errno, f"{error.strerror} ({call})")


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


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises OSError."""
    with replace_file(path) as file:
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
