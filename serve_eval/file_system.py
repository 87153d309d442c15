"""Call what not every file system can do: lock, force to disk, rename over a file.

NFS, Lustre, FUSE and mounts of containers may refuse these calls. What is safe without one goes on
without it; an error names the call, since "Operation not permitted" alone helps nobody.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

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
