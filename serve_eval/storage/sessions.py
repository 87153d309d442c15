"""Record the sessions of a run in environment.json and run.log, to the end of each.

A session is recorded before its first request, with the versions in use, the endpoint and its
abilities. Its load is added at its end. The endpoint is signed, since later commands send prompts
to it. Fields that this version does not know stay in the file.

The file is private, has no secrets, and never stops a run. When it is full, it is moved to
run.log.1, which it replaces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.schema import (
    Ability,
    Endpoint,
    EngineReport,
    Limits,
    Load,
    RepeatedAnswers,
    SamplingDefaults,
    ThoughtsSeen,
)
from serve_eval.storage import ownership
from serve_eval.storage.file_names import LOG_FILE, SESSIONS_FILE
from serve_eval.storage.json_files import pretty_json, write_private


class UsedCode(msgspec.Struct, frozen=True):
    """Third-party code that affects the numbers of a session, for comparison with a later one."""

    sha256: str | None = None


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One session of a run.

    Times are UTC in ISO 8601. Fields that an older version did not record have their defaults.
    `part_of` is the command whose comparison or check asked the run ("": it stands for itself).
    The servers ran for `served_s` seconds with that many `gpus` (None: not known). `rerun`: answers
    of earlier sessions were asked again. `own` means that this user recorded the endpoint in this
    folder. `stored` is the whole entry, with the versions.
    """

    started_at: str = ""
    endpoint: Endpoint = Endpoint(base_url="")
    limits: Limits | None = None
    load: Load | None = None
    engine: EngineReport | None = None
    repeated: RepeatedAnswers | None = None
    thoughts: ThoughtsSeen | None = None
    abilities: tuple[Ability, ...] = ()
    sampling_defaults: SamplingDefaults | None = None
    unsupported: Mapping[str, Ability] = {}
    extensions: Mapping[str, UsedCode] = {}
    part_of: str = ""
    served_s: float | None = None
    gpus: int | None = None
    rerun: bool = False
    own: bool = False
    stored: Mapping[str, Any] = {}


def lacks_loads(run: Path) -> bool:
    """Return True if a session of a run was killed, so that its requests in flight are unknown."""
    return any(one.load is None for one in read_sessions(run))


def read_sessions(run: Path) -> list[SessionRecord]:
    """Return the sessions that sent requests, oldest first.

    Raises RunFolderError for a damaged file.
    """
    return SessionFile(run).read()


class SessionFile:
    """The sessions of a run folder that this process has locked: their file is read once.

    Each addition is written to the file and kept, so that the steps of a run, of which a dozen ask
    for the sessions, do not read it again. Methods raise RunFolderError for a damaged file.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._stored: list[dict[str, Any]] | None = None
        self._records: list[SessionRecord] | None = None

    def read(self) -> list[SessionRecord]:
        """Return the sessions that sent requests, oldest first."""
        if self._records is None:
            try:
                self._records = [_read_entry(self._run, entry) for entry in self._entries()]
            except msgspec.MsgspecError as error:
                raise _build_error(self._run, error) from error
        return self._records

    def defaults(self) -> SamplingDefaults | None:
        """Return the sampling defaults of the endpoint, as the last probe found them."""
        found = [one.sampling_defaults for one in self.read()]
        return next((one for one in reversed(found) if one is not None), None)

    def loads(self) -> tuple[Load, ...]:
        """Return the load of each session that finished, oldest first."""
        return tuple(session.load for session in self.read() if session.load is not None)

    def note_session(self, session: Mapping[str, object]) -> None:
        """Append a session with its signed endpoint."""
        self._write([*self._entries(), _with_signature(session, self._run)])

    def note_endpoint(self, endpoint: Endpoint) -> None:
        """Replace the endpoint of the last session, since more is known at its end."""
        *others, last = self._entries()
        self._write([*others, _with_signature({**last, "endpoint": endpoint}, self._run)])

    def note_load(self, load: Load) -> None:
        """Add the engine's load figures to the last session, if there is one."""
        self._note("load", load)

    def note_served(self, served_s: float, gpus: int | None) -> None:
        """Add to the last session how long its servers ran, with how many GPUs if it is known."""
        self._note("served_s", round(served_s, 3))
        if gpus is not None:
            self._note("gpus", gpus)

    def note_counts(self, counts: EngineReport) -> None:
        """Add what the servers' engines counted to the last session, if there is one."""
        self._note("engine", counts)

    def note_repeated(self, found: RepeatedAnswers) -> None:
        """Add the comparison of answers that were asked again to the last session, if any."""
        self._note("repeated", found)

    def note_thoughts(self, seen: ThoughtsSeen) -> None:
        """Add what answers showed of thoughts to the last session, if there is one."""
        self._note("thoughts", seen)

    def _note(self, name: str, value: object) -> None:
        if entries := self._entries():
            *others, last = entries
            self._write([*others, {**last, name: value}])

    def _entries(self) -> list[dict[str, Any]]:
        if self._stored is None:
            self._stored = _read_stored(self._run)
        return self._stored

    def _write(self, entries: list[dict[str, Any]]) -> None:
        data = _write(self._run, entries)
        self._stored, self._records = msgspec.json.decode(data), None


def copy_sessions(sources: Mapping[str, Path], run: Path) -> None:
    """Copy the sessions of shards to the run that joins them, in the order of their starts.

    Each is noted with its shard, the key in `sources`. It is signed again if this user recorded it.
    """
    found = [(shard, one) for shard, source in sources.items() for one in read_sessions(source)]
    entries = []
    for shard, one in sorted(found, key=lambda item: item[1].started_at):
        entry = {k: v for k, v in one.stored.items() if k != ownership.SIGNATURE}
        entry["shard"] = shard
        entries.append(_with_signature(entry, run) if one.own else entry)
    _write(run, entries)


def loads(run: Path) -> tuple[Load, ...]:
    """Return the load of each session that finished, oldest first."""
    return SessionFile(run).loads()


def read_unsupported(run: Path) -> Mapping[str, Ability]:
    """Return the abilities that the endpoint of the last session lacked, by task.

    Raises RunFolderError for a damaged file.
    """
    noted = read_sessions(run)
    return noted[-1].unsupported if noted else {}


def read_defaults(run: Path) -> SamplingDefaults | None:
    """Return the sampling defaults of the endpoint, as the last probe of a session found them.

    Raises RunFolderError for a damaged file.
    """
    return SessionFile(run).defaults()


def own_endpoint(run: Path) -> bool:
    """Return True if this user recorded the last session's endpoint, or there is no session."""
    noted = read_sessions(run)
    return not noted or noted[-1].own


def sessions_fingerprint(run: Path) -> bytes:
    """Return the bytes of the session file, which are equal for two copies of one run.

    Raises OSError if there is no file.
    """
    return (run / SESSIONS_FILE).read_bytes()


def forget_sessions(run: Path) -> None:
    """Remove the sessions of a folder that took another plan before any answer came."""
    (run / SESSIONS_FILE).unlink(missing_ok=True)


def _read_entry(run: Path, entry: Mapping[str, Any]) -> SessionRecord:
    known = msgspec.convert(
        {name: value for name, value in entry.items() if name not in _OURS}, SessionRecord
    )
    return msgspec.structs.replace(
        known, own=ownership.is_own(_of_endpoint(entry), run), stored=entry
    )


_OURS = ("own", "stored")


def _with_signature(session: Mapping[str, Any], run: Path) -> dict[str, Any]:
    return {**session, **ownership.add_signature(_of_endpoint(session), run)}


def _of_endpoint(session: Mapping[str, Any]) -> dict[str, Any]:
    return {name: session[name] for name in ("endpoint", ownership.SIGNATURE) if name in session}


def _read_stored(run: Path) -> list[dict[str, Any]]:
    file = run / SESSIONS_FILE
    try:
        return (
            msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
            if file.exists()
            else []
        )
    except msgspec.MsgspecError as error:
        raise _build_error(run, error) from error


def _build_error(run: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{run / SESSIONS_FILE} cannot be read: {error}",
        hint="Delete it. It is only informative.",
    )


def _write(run: Path, entries: list[dict[str, Any]]) -> bytes:
    """Write the file and return its bytes."""
    data = pretty_json(entries)
    write_private(run / SESSIONS_FILE, data)
    return data


MOST_BYTES = 1024 * 1024
"""Size of run.log at which it is moved away."""
MOST_CHARACTERS = 2000
"""Longest line; a server may answer with a page."""


class RunLog:
    """The log of a run folder. `hide` removes secrets from a line."""

    def __init__(self, folder: Path, hide: Callable[[str], str]) -> None:
        self._file, self._hide = folder / LOG_FILE, hide

    def note(self, line: str) -> None:
        """Append a line with the time. Ignores a disk that is full or a file that is not ours."""
        flat = " ".join(self._hide(line).split())
        plain = "".join(c if c.isprintable() else "?" for c in flat)[:MOST_CHARACTERS]
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = f"{stamp}  {plain}\n".encode(errors="backslashreplace")
        with suppress(OSError):
            if self._file.exists() and self._file.stat().st_size + len(data) > MOST_BYTES:
                self._file.replace(self._file.with_name(f"{LOG_FILE}.1"))
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self._file, flags, 0o600), "ab") as out:
                out.write(data)


INTERRUPTED = "interrupted"
MOST_REASON_CHARACTERS = 400
"""Characters of a message that are kept: it may have the tail of a server's log."""
_EVENT = re.compile(r"^\S+Z  (start|end): (.*)$", re.MULTILINE)
_ENDING = re.compile(r"^(?:[A-Z]\w*: )?(.*?)(?:; \d+ retries)?$")
_FINISHED = "exit code "


def find_session_end(run: Path) -> str:
    """Return the error that ended the last session, INTERRUPTED, or "" if none is recorded.

    A session that was killed, goes on, or has a report records none.
    """
    try:
        text = (run / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    kind, said = next(reversed(_EVENT.findall(text)), ("start", ""))
    if kind == "start" or said.startswith(_FINISHED):
        return ""
    found = _ENDING.match(said)
    message = said if found is None else found[1]
    return (
        message
        if len(message) <= MOST_REASON_CHARACTERS
        else f"{message[: MOST_REASON_CHARACTERS - 3]}..."
    )
