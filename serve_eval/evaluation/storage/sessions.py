"""Read and write environment.json: an entry per session of a run, oldest first.

A session is noted before its first request, with the versions at work, the endpoint and what it can
do; its load is added at its end. The endpoint is signed, since later commands send prompts there.
Fields that this version does not know stay in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage import ownership
from serve_eval.evaluation.storage.file_names import SESSIONS_FILE
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.schema import Ability, Endpoint, Limits, Load


class UsedCode(msgspec.Struct, frozen=True):
    """Code of others that made numbers of a session, as far as a later one compares it."""

    sha256: str | None = None


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One session of a run. Times are UTC in ISO 8601; what an older version did not note has its
    default.

    `own` says that this user noted the endpoint in this folder; `stored` is the whole entry, with
    the versions.
    """

    started_at: str = ""
    endpoint: Endpoint = Endpoint(base_url="")
    limits: Limits | None = None
    load: Load | None = None
    abilities: tuple[Ability, ...] = ()
    unsupported: Mapping[str, Ability] = {}
    extensions: Mapping[str, UsedCode] = {}
    own: bool = False
    stored: Mapping[str, Any] = {}


def read_sessions(run: Path) -> list[SessionRecord]:
    """Return the sessions that asked something, oldest first. Raises RunFolderError for a damaged
    file.
    """
    try:
        return [_read_entry(run, entry) for entry in _read_stored(run)]
    except msgspec.MsgspecError as error:
        raise _build_error(run, error) from error


def note_session(run: Path, session: Mapping[str, object]) -> None:
    """Add a session, with its endpoint signed."""
    _write(run, [*_read_stored(run), _with_signature(session, run)])


def note_endpoint(run: Path, endpoint: Endpoint) -> None:
    """Replace the endpoint of the last session, of which more is known at its end."""
    entries = _read_stored(run)
    entries[-1] = _with_signature({**entries[-1], "endpoint": endpoint}, run)
    _write(run, entries)


def note_load(run: Path, load: Load) -> None:
    """Add to the last session, if it was noted, what the engine did in it."""
    if entries := _read_stored(run):
        entries[-1]["load"] = load
        _write(run, entries)


def loads(run: Path) -> tuple[Load, ...]:
    """Return what the engine did in each session that came to its end, oldest first."""
    return tuple(session.load for session in read_sessions(run) if session.load is not None)


def read_unsupported(run: Path) -> Mapping[str, Ability]:
    """Return what the endpoint of the last session lacked, by task. Raises RunFolderError for a
    damaged file.
    """
    noted = read_sessions(run)
    return noted[-1].unsupported if noted else {}


def own_endpoint(run: Path) -> bool:
    """Tell whether this user noted the endpoint of the last session there, or there was no session
    yet.
    """
    noted = read_sessions(run)
    return not noted or noted[-1].own


def sessions_fingerprint(run: Path) -> bytes:
    """Return what two copies of one run have in common: the record of their sessions. Raises
    OSError without one.
    """
    return (run / SESSIONS_FILE).read_bytes()


def forget_sessions(run: Path) -> None:
    """Remove the sessions of a folder that has taken another plan before any answer came."""
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
        f"{run / SESSIONS_FILE} cannot be read: {error}", hint="It only informs: delete it."
    )


def _write(run: Path, entries: list[dict[str, Any]]) -> None:
    write_private(run / SESSIONS_FILE, pretty_json(entries))
