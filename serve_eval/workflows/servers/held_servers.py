"""Which servers are held for others: one small file each, in a folder of the user's.

~/.local/state/serve-eval/servers/HOST/, below XDG_STATE_HOME where that is set, mode 0700:

ID.json    a deployment with its holder, the process that starts and ends its servers
ID-*/      what the holder wrote, where it was given no other folder: logs, and the plan that it was started with
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.errors import LaunchError
from serve_eval.evaluation.storage.ownership import state_folder
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Endpoint

LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A deployment that a process holds. `id` says what is served; `began` is when the process
    `pid` began, so that another one of the same number is not mistaken for it.

    `ending` begins with the first server that ends, `ended` tells of a holder that failed, with its
    `error` and `hint`: one that was asked to end leaves nothing. `patience_s` is how long a sample
    may take. `endpoint` is there from `ready` on.
    """

    id: str
    state: Literal["starting", "ready", "ending", "ended"]
    launcher: str
    model: str
    pid: int
    began: str
    since: str
    log_dir: str
    patience_s: float
    endpoint: Endpoint | None = None
    error: str = ""
    hint: str = ""

    @property
    def alive(self) -> bool:
        """Whether its holder is there."""
        return began(self.pid) == self.began


def began(pid: int) -> str | None:
    """When a process began: the boot, and the ticks since then. None when there is none, or a dead
    one that nobody waited for, and anywhere but on Linux.
    """
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        return (
            None
            if fields[0] in "ZX"
            else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
        )
    except OSError:
        return None


def registry(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of this user and machine, made when it is not there. Raises LaunchError for one
    that is not ours.
    """
    folder = state_folder(environ) / "servers" / socket.gethostname()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in (folder.parent, folder):
            place.chmod(0o700)
    except OSError as error:
        raise LaunchError(
            f"{folder} cannot be used: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder of your own.",
        ) from error
    return folder


def find(folder: Path, id_: str) -> Held | None:
    """The deployment of that id, if its holder is there or told how it failed."""
    entry = _read(folder / f"{id_}.json")
    return entry if entry is not None and (entry.state == "ended" or entry.alive) else None


def entries(folder: Path) -> list[Held]:
    """All of them, oldest first. Files that cannot be read, or whose holder is gone, are
    removed.
    """
    found = []
    with _lock(folder):
        for file in folder.glob("*.json"):
            if (entry := find(folder, file.stem)) is not None:
                found.append(entry)
            else:
                file.unlink(missing_ok=True)
    return sorted(found, key=lambda entry: entry.since)


def claim(folder: Path, entry: Held) -> Held | None:
    """Enters a deployment and returns None, unless another holder has it, which is returned
    then.
    """
    with _lock(folder):
        other = find(folder, entry.id)
        if other is not None and other.state != "ended":
            return other
        _write(folder, entry)
    return None


def update(folder: Path, entry: Held) -> None:
    """Writes what became of a deployment, unless another holder has it by now."""
    with _lock(folder):
        other = find(folder, entry.id)
        if other is None or other.state == "ended" or _same(other, entry):
            _write(folder, entry)


def remove(folder: Path, entry: Held) -> None:
    """Takes a deployment out, unless another holder has it by now."""
    with _lock(folder):
        other = _read(folder / f"{entry.id}.json")
        if other is None or _same(other, entry):
            (folder / f"{entry.id}.json").unlink(missing_ok=True)


def now(folder: Path, entry: Held) -> Held | None:
    """What is known of the same holder by now; None when it is gone without a word."""
    found = find(folder, entry.id)
    return found if found is not None and _same(found, entry) else None


def ask_to_end(entry: Held) -> None:
    """SIGTERM to the holder, and to no other process that has got its number."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(entry.pid)
        try:
            if entry.alive:
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)


def _same(one: Held, other: Held) -> bool:
    return (one.pid, one.began) == (other.pid, other.began)


def _read(file: Path) -> Held | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Held)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(folder: Path, entry: Held) -> None:
    write_private(folder / f"{entry.id}.json", pretty_json(entry))


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """For the moment that a change takes."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
