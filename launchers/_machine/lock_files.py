"""Locks on GPUs, ports, nodes of a job and log folders that keep launches apart.

A lock is a file with an flock, which the kernel releases when the last process that holds it ends.
The folder of the files does not depend on TMPDIR. /run/user/UID would not work, as it exists only
while the user is logged in.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from serve_eval.errors import LaunchError, NoRoomError

VARIABLE = "SERVE_EVAL_LOCK_DIR"
"""Names another folder, for use if /tmp is not shared by all launches that must be kept apart."""
SHARED = Path("/tmp")  # noqa: S108 - a folder of our own in it, whose owner is checked
OF_GPU = "GPU-"
"""Prefix of the name of a GPU's lock: its UUID, or GPU-0."""
FOLDER = "."
"""Name of the lock of the folder itself."""
NAME_CHARS = 200
TRIES, PAUSE_S = 3, 0.02
"""Attempts and seconds between them, as another user who checks a lock holds it briefly."""
HINTS = {
    "GPU": ("Wait until it ends, name other GPUs, or set launcher.gpus: auto to use free ones."),
    "port": "Wait until it ends, or leave `port` out to use a free one.",
    "folder": "Wait until it ends, or name another folder with -o.",
    "node": "Wait until it ends, or give each run its own nodes with launcher.nodes.",
}


@contextmanager
def lock_names(
    names: Iterable[str],
    *,
    held: Mapping[str, int] | None = None,
    shown: Mapping[str, str] | None = None,
) -> Iterator[dict[str, int]]:
    """Lock things such as `GPU-0`, `port-8000` or `folder-/a/b` for the block.

    Yields the descriptors that hold the locks. A process that inherits them holds the locks until
    it ends too. `held` are locks that the caller already has; `shown` maps a lock to its name in
    errors. Raises LaunchError if one is taken, NoRoomError for a GPU.
    """
    place, own = folder(), dict[str, int]()
    try:
        own[FOLDER] = _keep(place)
        for name in names:
            if name in (held or {}) or name in own:
                continue
            own[name] = _take(place, name, (shown or {}).get(name) or name.replace("-", " ", 1))
        yield {**(held or {}), **own}
    finally:
        for file in own.values():
            os.close(file)
        for name in own:
            _tidy(place, name)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the locks, shared by all processes of this user on this machine.

    Creates it if necessary. Raises LaunchError if no folder can be used.
    """
    tried = []
    for place in _places(environ):
        if _usable(place):
            return place
        tried.append(str(place))
    raise LaunchError(
        f"no folder for locks: {' and '.join(tried)} cannot be written or belong to another user",
        hint=f"Set {VARIABLE} to a folder of your own on this machine.",
    )


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get(VARIABLE):
        yield Path(named).absolute()
        return
    yield SHARED / f"serve-eval-{os.getuid()}"
    with suppress(RuntimeError):  # if no home is known
        state = Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        yield (
            state.absolute() / "serve-eval/locks" / socket.gethostname()
        )  # machines may share a home


def _usable(place: Path) -> bool:
    """Return True for a folder that is ours and not a link.

    Others may check a lock whose name they know, but cannot list the locks.
    """
    try:
        place.mkdir(mode=0o700, parents=place.parent != SHARED, exist_ok=True)
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if stat.S_IMODE(found.st_mode) != 0o711:
            place.chmod(0o711)
        return os.access(place, os.W_OK)
    except OSError:
        return False


def _keep(place: Path) -> int:
    """Lock the folder itself, shared, so that cleaners of /tmp leave it alone."""
    file = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return file


def _take(place: Path, name: str, title: str) -> int:
    path, owner = place / _file_of(name), "unknown"
    for attempt in range(TRIES):
        time.sleep(PAUSE_S * bool(attempt))
        file = _open(path)
        try:
            if name.startswith(OF_GPU):
                os.fchmod(file, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(file, path):  # removed meanwhile
                os.close(file)
                continue
            if name.startswith(OF_GPU) and (user := _other_user(name, place)) is not None:
                raise _error(name, f"{title} is used by another launch of serve-eval, by {user}")
            os.truncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(file)
        except BaseException:
            os.close(file)
            raise
        else:
            return file
    raise _error(name, f"{title} is used by another launch of serve-eval (process {owner})")


def _tidy(place: Path, name: str) -> None:
    """Remove the file of a lock that no process holds.

    Each log folder has one. Files of GPUs are kept, as they are few.
    """
    path = place / _file_of(name)
    if name == FOLDER or name.startswith(OF_GPU):
        return
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                path.unlink()
        finally:
            os.close(file)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LaunchError(
            f"{path} cannot be written: {error.strerror}",
            hint=f"Set {VARIABLE} to a folder of your own.",
        ) from error


def _error(name: str, message: str) -> LaunchError:
    kind = NoRoomError if name.startswith(OF_GPU) else LaunchError
    return kind(message, hint=HINTS.get(name.partition("-")[0], "Wait until it ends."))


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except OSError:
        return False


def _other_user(name: str, own: Path) -> str | None:
    """Return the other user who holds the lock of that name; None if no one is seen."""
    if own.parent != SHARED:
        return None
    for place in SHARED.glob("serve-eval-*"):
        uid = place.name.rpartition("-")[2]
        with suppress(OSError):
            if place == own or not uid.isdecimal() or place.lstat().st_uid != int(uid):
                continue
            # The file is theirs and may be a link or a pipe.
            file = os.open(
                place / _file_of(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
            try:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _user(int(uid))
            finally:
                os.close(file)
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _file_of(name: str) -> str:
    """Return the name of a lock file: without a slash and not too long."""
    plain = "/" not in name and len(name) <= NAME_CHARS
    return f"{name if plain else hashlib.sha256(name.encode()).hexdigest()}.lock"
