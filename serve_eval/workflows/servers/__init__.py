"""Register the servers that are held, named so that runs of the same deployment find them.

The folder is ~/.local/state/serve-eval/servers/HOST/, or below XDG_STATE_HOME if that is set, with
mode 0700:

    ID.json    a deployment and its holder, the process that starts and ends its servers
    ID-*/      files of a holder without another folder: logs, and the plan that it was started with

The name depends on the launcher, its options, the files they name, and the model. The document is
that of `serve-eval serve`: what is kept up on this machine, or was stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.errors import LaunchError, PlanError
from serve_eval.evaluation.launch import check_launcher
from serve_eval.frozen import freeze
from serve_eval.plugins import extensions
from serve_eval.plugins.values import load_launcher
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.report.document import Block, Conclusion, Document, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.schema import Endpoint, Plan
from serve_eval.storage.json_files import pretty_json, write_private
from serve_eval.storage.ownership import state_folder
from serve_eval.verdicts.exit_code import PASS

LOCK = "lock"


@freeze
class Held:
    """A deployment that a process holds.

    `id` identifies what is served. `began` is the start of the process `pid`, so that another
    process of the same number is not mistaken for it.

    `ending` starts with the first server that ends. `ended` means that the holder failed, with its
    `error`, `hint` and `exit_code`; a holder that was asked to end leaves no entry. `patience_s` is
    the time limit of a sample. `endpoint` is set from `ready` on. `started_in` is the folder of the
    command that started it.
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
    started_in: str = ""
    endpoint: Endpoint | None = None
    error: str = ""
    hint: str = ""
    exit_code: int = LaunchError.exit_code

    @property
    def alive(self) -> bool:
        """True if its holder is running."""
        return began(self.pid) == self.began


def began(pid: int) -> str | None:
    """Return the start of a process: the boot id and the ticks since boot.

    Returns None if there is no such process, if it is a zombie, and on systems other than Linux.
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


def find_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user and machine, which need not exist."""
    return state_folder(environ) / "servers" / socket.gethostname()


def registry(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user and machine, and create it if needed.

    Raises LaunchError if it cannot be used.
    """
    folder = find_folder(environ)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in (folder.parent, folder):
            place.chmod(0o700)
    except OSError as error:
        raise LaunchError(
            f"{folder} cannot be used: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder that belongs to you.",
        ) from error
    return folder


def find(folder: Path, id_: str) -> Held | None:
    """Return the deployment of that id, if its holder is running or reported how it failed."""
    entry = _read(folder / f"{id_}.json")
    return entry if entry is not None and (entry.state == "ended" or entry.alive) else None


def entries(folder: Path) -> list[Held]:
    """Return all deployments, oldest first.

    Files that cannot be read, or whose holder is gone, are removed.
    """
    found = []
    with _lock(folder):
        for file in folder.glob("*.json"):
            if (entry := find(folder, file.stem)) is not None:
                found.append(entry)
            else:
                file.unlink(missing_ok=True)
    return sorted(found, key=lambda entry: entry.since)


def list_all(folder: Path) -> list[Held]:
    """Return all deployments, the latest first, also those whose holder is gone."""
    found = [entry for file in folder.glob("*.json") if (entry := _read(file)) is not None]
    return sorted(found, key=lambda entry: entry.since, reverse=True)


def claim(folder: Path, entry: Held) -> Held | None:
    """Add a deployment and return None, or return the entry of another holder that has it."""
    with _lock(folder):
        other = find(folder, entry.id)
        if other is not None and other.state != "ended":
            return other
        _write(folder, entry)
    return None


def update(folder: Path, entry: Held) -> None:
    """Write the state of a deployment, unless another holder has it by now."""
    with _lock(folder):
        other = find(folder, entry.id)
        if other is None or other.state == "ended" or _same(other, entry):
            _write(folder, entry)


def remove(folder: Path, entry: Held) -> None:
    """Remove a deployment, unless another holder has it by now."""
    with _lock(folder):
        other = _read(folder / f"{entry.id}.json")
        if other is None or _same(other, entry):
            (folder / f"{entry.id}.json").unlink(missing_ok=True)


def now(folder: Path, entry: Held) -> Held | None:
    """Return the current entry of the same holder; None if it is gone without a report."""
    found = find(folder, entry.id)
    return found if found is not None and _same(found, entry) else None


def ask_to_end(entry: Held) -> None:
    """Send SIGTERM to the holder, but not to another process that has taken its number."""
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
    """Hold the lock for the duration of a change."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


UNHELD = {
    "external": "it starts no server",
    "kubernetes": "it starts no server",
    "simulated": "its server only knows the answers to the questions of one run",
}
"""Launchers whose endpoints cannot be held, and why."""
WAITING = ("ready_timeout_s", "answer_timeout_s", "stop_timeout_s")
"""Options that set how long to wait for servers, but not what they serve."""
TEXT_BYTES = 1024 * 1024
"""Longest file, in bytes, that is read for the id."""
ID_CHARS = 8


def identity(plan: Plan) -> str:
    """Return the id of what is served.

    It covers the launcher, its options with the content of paths in them, and the model.
    """
    launcher = load_launcher(plan.launcher.name)
    given = launcher.check_options(plan.launcher.options)
    options = {name: option.default for name, option in launcher.options.items()} | given
    loaded = options.pop("model", None) or plan.model
    served = {
        name: (asdict(value) if is_dataclass(value) and not isinstance(value, type) else value)
        for name, value in options.items()
        if name not in WAITING
    }
    content = {
        "launcher": plan.launcher.name,
        "options": _with_files(msgspec.to_builtins(served)),
        "model": plan.model or loaded,
        "loaded": str(Path(str(loaded)).resolve()) if Path(str(loaded)).is_dir() else loaded,
    }
    if (code := extensions.list_loaded().get(f"launchers.{plan.launcher.name}")) is not None:
        content["code"] = code.sha256
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:ID_CHARS]


def _with_files(options: object, name: str = "") -> object:
    """Return options with the content behind the paths in them.

    That is the hash of a file, since another text serves something else; the full path of a folder;
    and path, size and time of a file that is too long to read, such as a program.
    """
    if isinstance(options, Mapping):
        return {key: _with_files(value, str(key)) for key, value in options.items()}
    if isinstance(options, list):
        return [_with_files(value, name) for value in options]
    if not isinstance(options, str):
        return options
    if name == "command":
        with suppress(ValueError):  # Reported where the command is checked.
            return [_behind(word) for word in shlex.split(options)]
    return _behind(options)


def _behind(word: str) -> object:
    """Return a word of an option or a command line, or the content of the path that it names.

    The path may follow `--flag=`.
    """
    before, equals, after = word.partition("=") if word.startswith("-") else ("", "", word)
    if not after:
        return word
    try:
        path = Path(after).expanduser()
        if path.is_dir():
            return [before, equals, str(path.resolve())]
        if not path.is_file():
            return word
        state = path.stat()
        if state.st_size > TEXT_BYTES:
            return [before, equals, str(path.resolve()), state.st_size, state.st_mtime_ns]
        return [before, equals, hashlib.sha256(path.read_bytes()).hexdigest()]
    except (OSError, ValueError, RuntimeError):
        return word


def check(plan: Plan) -> None:
    """Raise PlanError for servers that cannot be held or launched."""
    if why := UNHELD.get(plan.launcher.name):
        raise PlanError(
            f"launcher {plan.launcher.name}: {why}, so there is nothing to hold",
            hint="Give the launcher to the command that asks, as in serve-eval run --launcher"
            f" {plan.launcher.name}, or hold the toy model: serve-eval serve embedded --detach.",
        )
    check_launcher(plan)


RESULT_SCHEMA = 1
"""Version of the JSON of servers."""


def make_document(entries: Sequence[Held], *, stopped: bool = False) -> Document:
    """Return the document of servers: state, model and address of each, the ended ones first."""
    conclusions = [_conclude(one, stopped=stopped) for one in entries]
    nothing = Conclusion("this machine", "NO SERVERS", figures="no servers are running")
    return Document(
        "serve",
        f"serve-eval serve {'--stop' if stopped else '--list'}",
        make_header(PASS),
        conclusions=conclusions or [nothing],
        noun="servers",
        blocks=[Block(_tabulate(entries))] if entries and not stopped else [],
        commands=[] if stopped else [f"serve-eval serve --stop {one.id}" for one in entries],
    )


def describe_servers(entries: Sequence[Held]) -> dict[str, object]:
    """Return what JSON has of servers."""
    return {
        "schema_version": RESULT_SCHEMA,
        "servers": [
            {
                "id": one.id,
                "state": one.state,
                "launcher": one.launcher,
                "model": one.model,
                "base_url": _find_url(one),
                "pid": one.pid,
                "since": one.since,
                "started_in": one.started_in,
                "log_dir": one.log_dir,
                "error": one.error,
            }
            for one in entries
        ],
    }


def _conclude(one: Held, *, stopped: bool) -> Conclusion:
    url = _find_url(one)
    return Conclusion(
        one.id,
        "STOPPED" if stopped else one.state.upper(),
        figures=f"{one.launcher}: {one.model}{f' at {url}' if url else ''}",
        cause="" if stopped else one.error,
    )


def _tabulate(entries: Sequence[Held]) -> DataTable:
    """Return the table of the holders: their processes, since when, and where their files are."""
    rows = [
        (one.id, one.state.upper(), str(one.pid), one.since, one.started_in or "-", one.log_dir)
        for one in entries
    ]
    names = ("server", "outcome", "process", "since", "started in", "logs")
    return DataTable(
        "Holders",
        columns=[DataColumn(name) for name in names],
        rows=[[DataCell(text) for text in row] for row in rows],
    )


def _find_url(one: Held) -> str:
    return "" if one.endpoint is None else one.endpoint.base_url
