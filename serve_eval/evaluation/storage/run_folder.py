"""A run's folder: locked while it is used, bound to one plan, private to the user.

plan.json            the plan and the protocol fingerprint of each task, signed by who made it (see ownership)
environment.json     one entry per session: versions, endpoint, what it can do, limits, and at its end the load
samples/<task>.jsonl what the endpoint said            scores/<task>.jsonl  what we made of it
executions/<task>.jsonl what running its answers gave, for a task that runs them
judgements/<task>.jsonl what judges said of its answers, for a task that asks them
cases/<task>.jsonl   under what a user's own cases were asked
archive/<time>/      records that do not count any more
report.json          the report                        report.html          the same to look at
logs/                of launched servers
served.jsonl         which servers behind one door answered which request, where the door tells it
steps.jsonl          which connections were proven to give each answer to its own request (see proofs)
order.json           the seed of the random order of its samples (see order_seed)
looks.json           the tasks that a paired rule looked at on the way, and which rule: a part of their alpha is spent
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.evaluation.storage import ownership
from serve_eval.evaluation.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.plugins import registry
from serve_eval.schema import Ability, Endpoint, Load, Plan, lives

PLAN_FILE, ENVIRONMENT_FILE, REPORT_FILE, LOCK_FILE = "plan.json", "environment.json", "report.json", "lock"
PAGE_FILE, LOOKS_FILE = "report.html", "looks.json"

FREE_FIELDS = (
    "limits",
    "connection",
    "dataset_roots",
    "early_stop",
    "repeats",
    "repeats_of",
    "allow_code_execution",
    "include_path",
)
"""Fields of the plan that may differ on resuming: they say how fast, how far, how often, how reached, where data and
code lie and what is allowed, not what is asked. The content of the data is held by the fingerprints."""


def private_file(path: Path) -> BinaryIO:
    """A new, empty file that the user alone can read, opened for writing: no link that a folder of somebody else has
    there is followed. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


def write_private(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, readable by the user alone. Raises JournalError for a full disk, else
    RunFolderError."""
    partial = path.with_name(path.name + ".partial")
    try:
        with private_file(partial) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise JournalError(f"{path}: cannot write: {error.strerror}", hint=NO_ROOM_HINT) from error
        raise RunFolderError(f"{path}: cannot write: {error.strerror}") from error


def pretty_json(value: object) -> bytes:
    """JSON for people: two spaces of indentation and a final newline. Non-finite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def saved_plan(path: Path) -> Plan:
    """The plan of a run folder. Raises RunFolderError when there is none."""
    return _stored(path)[0]


def plan_and_owner(path: Path) -> tuple[Plan, bool]:
    """The plan of a run folder, and whether this user saved it there. Raises RunFolderError when there is none."""
    plan, _, own = _stored(path)
    return plan, own


def saved_fingerprints(path: Path) -> dict[str, dict[str, str]]:
    """The protocol fingerprint of each task of a run folder. Raises RunFolderError when there is none."""
    return _stored(path)[1]


def _stored(path: Path) -> tuple[Plan, dict[str, dict[str, str]], bool]:
    """The plan and the fingerprints of a run folder, and whether this user saved them; fields that a newer version
    added have their defaults."""
    file = path / PLAN_FILE
    try:
        stored = msgspec.json.decode(file.read_bytes())
        plan = msgspec.convert(stored["plan"], Plan)
        prints = msgspec.convert(stored["fingerprints"], dict[str, dict[str, str]])
        return plan, prints, ownership.is_own(stored, path)
    except FileNotFoundError as error:
        raise RunFolderError(f"{path} holds no run: there is no {PLAN_FILE}") from error
    except (OSError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error


def sessions(path: Path) -> list[dict[str, Any]]:
    """The sessions that asked something, oldest first. Raises RunFolderError for a damaged file."""
    file = path / ENVIRONMENT_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]]) if file.exists() else []
    except msgspec.MsgspecError as error:
        raise RunFolderError(f"{file} cannot be read: {error}", hint="It only informs: delete it.") from error


def note_session(path: Path, session: dict[str, object]) -> None:
    """Adds a session. Its endpoint is signed: later commands send prompts there."""
    write_private(path / ENVIRONMENT_FILE, pretty_json([*sessions(path), _with_signature(session, path)]))


def own_endpoint(path: Path) -> bool:
    """Tell whether this user noted the endpoint of the last session there, or there was no session yet."""
    noted = sessions(path)
    return not noted or own_session(path, noted[-1])


def own_session(path: Path, session: Mapping[str, Any]) -> bool:
    """Tell whether this user noted the endpoint of a session in that folder."""
    return ownership.is_own(_of_endpoint(session), path)


def _with_signature(session: dict[str, Any], path: Path) -> dict[str, Any]:
    return {**session, **ownership.signed(_of_endpoint(session), path)}


def _of_endpoint(session: Mapping[str, Any]) -> dict[str, Any]:
    return {name: session[name] for name in ("endpoint", ownership.SIGNATURE) if name in session}


def unsupported(path: Path) -> dict[str, Ability]:
    """What the endpoint of the last session lacked, by task. Raises RunFolderError for a damaged file."""
    noted = sessions(path)
    return msgspec.convert(noted[-1].get("unsupported", {}), dict[str, Ability]) if noted else {}


def note_endpoint(path: Path, endpoint: Endpoint) -> None:
    """Replaces the endpoint of the last session, of which more is known at its end."""
    noted = sessions(path)
    noted[-1] = _with_signature({**noted[-1], "endpoint": endpoint}, path)
    write_private(path / ENVIRONMENT_FILE, pretty_json(noted))


def note_load(path: Path, load: Load) -> None:
    """Adds to the last session, if it was noted, what the engine did in it."""
    if noted := sessions(path):
        noted[-1]["load"] = load
        write_private(path / ENVIRONMENT_FILE, pretty_json(noted))


def loads(path: Path) -> tuple[Load, ...]:
    """What the engine did in each session that came to its end, oldest first."""
    return tuple(msgspec.convert(session["load"], Load) for session in sessions(path) if "load" in session)


def has_answers(path: Path) -> bool:
    """Tell whether a run folder holds a record of any sample."""
    return any(file.stat().st_size for file in (path / "samples").glob("*.jsonl"))


def answered(path: Path) -> bool:
    """Tell whether a folder holds an answer, in the folder of a run or of several runs below it."""
    for file in path.glob("**/samples/*.jsonl"):
        with suppress(OSError), file.open("rb") as lines:
            # Within a JSON string its quotes are escaped.
            if any(b'"response":{' in line for line in lines):
                return True
    return False


def looked_at(path: Path) -> dict[str, str]:
    """Read which tasks a paired rule looked at for an early stop, and which rule. Raises RunFolderError for a damaged
    file."""
    file = path / LOOKS_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.exists() else {}
    except msgspec.MsgspecError as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint='Restore it: {"TASK": "noninferiority"} for each task of the run.'
        ) from error


def note_looks(path: Path, tasks: Mapping[str, str]) -> None:
    """Keep that paired rules look at these tasks: alpha that was spent stays so when the run goes on without looks."""
    before = looked_at(path)
    if (after := {**before, **tasks}) != before:
        write_private(path / LOOKS_FILE, pretty_json(after))


@contextmanager
def open_folder(
    path: Path, plan: Plan, fingerprints: Mapping[str, Mapping[str, str]], *, moved: bool = False, own: bool = False
) -> Iterator[Path]:
    """The folder, created or found again, locked until the end of the block (also when the process is killed).

    A folder without any answer yet takes another plan; `moved` allows another base URL. `own`: the plan is that of this
    user, who gave it or said that it is trusted; it is saved with a signature. Raises RunFolderError when
    another process has it, when it belongs to another plan or other data (the differing field is named), or when it
    holds other files than a run's.
    """
    with held(path, PLAN_FILE):
        _bind(path, plan, fingerprints, moved=moved, own=own)
        for name in ("samples", "scores", "logs"):
            (path / name).mkdir(mode=0o700, exist_ok=True)
        yield path


@contextmanager
def held(path: Path, sign: str, kind: str = "run") -> Iterator[None]:
    """The folder, created or found again, locked until the end of the block (also when the process is killed).

    `sign` is the file by which a folder is known as one of ours, of that `kind`. Raises RunFolderError when another
    process has it, or when it holds other files and no such sign.
    """
    import fcntl

    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = (LOCK_FILE, f"{sign}.partial")  # what a kill before the sign was written leaves behind
        foreign = not (path / sign).exists() and any(p.name not in ours for p in path.iterdir())
        lock = None if foreign else os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be used as a run folder: {error.strerror}") from error
    if lock is None:
        raise RunFolderError(f"{path} is not empty and holds no {kind}", hint="Choose another folder with -o.")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            raise RunFolderError(
                f"{path} is in use by another run (process {holder or 'unknown'})",
                hint="Wait for it, or use another -o.",
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _bind(path: Path, plan: Plan, fingerprints: Mapping[str, Mapping[str, str]], *, moved: bool, own: bool) -> None:
    asked = has_answers(path)
    if asked or (path / PLAN_FILE).exists():
        old_plan, old_prints, was_own = _stored(path)
        found, wanted = (
            msgspec.json.decode(msgspec.json.encode({"plan": p, "fingerprints": f}))
            for p, f in ((old_plan, old_prints), (plan, fingerprints))
        )
        for content in (found, wanted):
            for field in FREE_FIELDS:
                del content["plan"][field]
            if moved:
                content["plan"]["launcher"]["options"].pop("base_url", None)
        _drop_what_lives(found, wanted)
        differing = differences(found, wanted)
        if asked and differing:
            raise RunFolderError(
                f"{path} holds another run:\n" + "\n".join(f"  {line}" for line in differing),
                hint="Use another folder with -o, or go on with what that run was: --resume.",
            )
        if differing:
            (path / ENVIRONMENT_FILE).unlink(missing_ok=True)  # sessions of the other plan, without an answer
        elif not moved:
            later = replace(old_plan, tasks=plan.tasks, early_stop=plan.early_stop)
            later = replace(later, repeats=plan.repeats, repeats_of=plan.repeats_of)
            if own and not was_own:  # nobody said so of the connection that is saved there
                later = replace(later, connection=plan.connection)
            if later == old_plan and fingerprints == old_prints and was_own >= own:
                return
            plan, own = later, own or was_own  # later commands go by it
    saved: dict[str, object] = {"schema_version": 1, "plan": plan, "fingerprints": fingerprints}
    write_private(path / PLAN_FILE, pretty_json(ownership.signed(saved, path) if own else saved))


def _drop_what_lives(*stored: dict[str, Any]) -> None:
    """Leaves out of two stored plans what may change: which cases a user has, in which files, and how they are scored.
    What is chosen for all of them, such as a temperature, stays: an id does not tell it."""
    both = set.intersection(*({task["name"] for task in one["plan"]["tasks"]} for one in stored))
    for one in stored:
        one["fingerprints"] = {name: found for name, found in one["fingerprints"].items() if not lives(name)}
        one["plan"]["tasks"] = [_drop_own_options(task) for task in one["plan"]["tasks"] if _stays(task["name"], both)]


def _stays(task: str, both: set[str]) -> bool:
    return task in both or not lives(task)


def _drop_own_options(task: dict[str, Any]) -> dict[str, Any]:
    """A stored task that lives, without the options that say which its cases are."""
    if not lives(task["name"]):
        return task
    own = registry.options_of(registry.load("serve_eval.tasks", task["name"]))
    return {"name": task["name"], "options": {k: v for k, v in task["options"].items() if k not in own}}


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Where two JSON values differ, as lines `path: was X, now Y`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(k for k in new if k not in old)]
        return [
            line
            for key in keys
            for line in differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]")]
    return [] if old == new else [f"{where}: was {_brief(old)}, now {_brief(new)}"]


def _brief(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."
