"""Open a run folder: lock it, bind it to one plan, keep it private.

See file_names for the files in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.plugins import registry
from serve_eval.schema import IdentityFinding, Plan, is_mutable
from serve_eval.storage import ownership
from serve_eval.storage.command_folder import check_unused as check_unused
from serve_eval.storage.command_folder import hold as hold
from serve_eval.storage.command_folder import read_claim as read_claim
from serve_eval.storage.file_names import (
    COPY_FILE,
    IDENTITY_FILE,
    LOGS,
    LOOKS_FILE,
    PAGES,
    PLAN_FILE,
    PROOFS_FILE,
    REPORT_FILE,
    SAMPLES,
    SCORES,
    TRACE_FILE,
    journals_below,
    samples_file,
)
from serve_eval.storage.json_files import (
    FOLDER_FORMAT,
    FORMAT_KEY,
    check_format,
    differences,
    pretty_json,
    write_private,
)
from serve_eval.storage.sessions import forget_sessions
from serve_eval.storage.story_files import explain_missing_run

FREE_FIELDS = (
    "rule_named",
    "limits",
    "connection",
    "dataset_roots",
    "early_stop",
    "accept_identical",
    "repeats",
    "repeats_of",
    "allow_code_execution",
    "allow_meaningless",
    "include_path",
    "expect",
    "no_prompts",
    "no_media",
    "preset",
    "gpus",
    "end_when_certain",
)
"""Fields of the plan that may change when a run is resumed. They say how to send requests, how
many, where data and code are, what is allowed and what must be proven, but not what to ask.
Fingerprints cover the content of the data."""


def holds_run(path: Path) -> bool:
    """Return True if a folder is that of a run, finished or not."""
    return (path / PLAN_FILE).exists()


def read_plan(path: Path) -> Plan:
    """Return the plan of a run folder. Raises RunFolderError if there is none."""
    return _read_stored(path)[0]


def plan_and_owner(path: Path) -> tuple[Plan, bool]:
    """Return the plan of a run folder, and whether this user saved it there.

    Raises RunFolderError if there is no plan.
    """
    plan, _, own = _read_stored(path)
    return plan, own


def read_fingerprints(path: Path) -> dict[str, dict[str, str]]:
    """Return the protocol fingerprint of each task of a run folder.

    Raises RunFolderError if there is none.
    """
    return _read_stored(path)[1]


def _read_stored(path: Path) -> tuple[Plan, dict[str, dict[str, str]], bool]:
    """Return the plan and fingerprints of a run folder, and whether this user saved them.

    Fields that the file lacks have their defaults.
    """
    check_format(path)
    file = path / PLAN_FILE
    try:
        stored = msgspec.json.decode(file.read_bytes())
        plan = msgspec.convert(stored["plan"], Plan)
        prints = msgspec.convert(stored["fingerprints"], dict[str, dict[str, str]])
        return plan, prints, ownership.is_own(stored, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise explain_missing_run(path) from error
    except (OSError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error


def has_answers(path: Path) -> bool:
    """Return True if a run folder holds a record of any sample."""
    return any(file.stat().st_size for file in (path / SAMPLES).glob("*.jsonl"))


def has_answers_below(path: Path) -> bool:
    """Return True if any run folder in a folder holds a record of a sample."""
    return any(has_answers(one) for one in path.iterdir() if one.is_dir())


def holds_answer(path: Path) -> bool:
    """Return True if a run folder, or any run folder below a folder, holds a response."""
    for file in journals_below(path):
        with suppress(OSError), file.open("rb") as lines:
            # Quotes in a JSON string are escaped, so only a record's own key matches.
            if any(b'"response":{' in line for line in lines):
                return True
    return False


def is_bound(path: Path) -> bool:
    """Return True if a run folder holds more than failures, so that it keeps its plan."""
    return any(map(holds_more_than_failures, (path / SAMPLES).glob("*.jsonl")))


def is_bound_to(path: Path, task: str) -> bool:
    """Return True if a run folder holds more than failures of a task."""
    return holds_more_than_failures(samples_file(path, task))


def read_looks(path: Path) -> dict[str, str]:
    """Return the tasks that a paired rule checked for an early stop, with the rule.

    Raises RunFolderError for a damaged file.
    """
    file = path / LOOKS_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.exists() else {}
    except msgspec.MsgspecError as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}",
            hint='Restore it: {"TASK": "noninferiority"} for each task of the run.',
        ) from error


def note_looks(path: Path, tasks: Mapping[str, str]) -> None:
    """Record that paired rules check these tasks for an early stop.

    The alpha that was spent stays spent when the run is resumed without an early stop.
    """
    before = read_looks(path)
    if (after := {**before, **tasks}) != before:
        write_private(path / LOOKS_FILE, pretty_json(after))


def read_identity(path: Path) -> dict[str, IdentityFinding]:
    """Return what probes of references found, by task. Raises RunFolderError for a damaged file."""
    file = path / IDENTITY_FILE
    try:
        stored = file.read_bytes() if file.exists() else b"{}"
        return msgspec.json.decode(stored, type=dict[str, IdentityFinding])
    except msgspec.MsgspecError as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint="Delete it: the probes are then asked again."
        ) from error


def list_identical(path: Path) -> list[str]:
    """Return the tasks of a run that passed by identity and have no answer."""
    found = read_identity(path)
    journals = {task: samples_file(path, task) for task, one in found.items() if one.accepted}
    return [task for task, file in journals.items() if not (file.exists() and file.stat().st_size)]


def note_identity(path: Path, task: str, found: IdentityFinding) -> None:
    """Record what the probes of a task found, so that a resumed run does not ask them again."""
    write_private(path / IDENTITY_FILE, pretty_json({**read_identity(path), task: found}))


@contextmanager
def open_folder(
    path: Path,
    plan: Plan,
    fingerprints: Mapping[str, Mapping[str, str]],
    *,
    moved: bool = False,
    own: bool = False,
    grows: bool = False,
) -> Iterator[Path]:
    """Yield the folder of a run, created if necessary, locked until the end of the block.

    A folder without answers takes another plan. `moved` allows another base URL, and `grows`
    other tasks in place of those without an answer, and more of them. `own` means that
    this user gave or trusts the plan, so that it is saved with a signature. Raises RunFolderError
    if another process uses the folder, if it belongs to another plan or other data (and names the
    field that differs), or if it holds files other than a run's.
    """
    with hold(path, PLAN_FILE, writes=own):
        if own and is_unfinished_copy(path):
            raise RunFolderError(
                f"{path} is an unfinished copy of other run folders",
                hint="Give the command that began it again (runs merge, or judge --rescore), or"
                " choose another folder with -o.",
            )
        bind(path, plan, fingerprints, moved=moved, own=own, grows=grows)
        if own:
            forget_copy(path)
        yield path


def list_differences(
    path: Path,
    plan: Plan,
    fingerprints: Mapping[str, Mapping[str, str]],
    *,
    moved: bool = False,
    grows: bool = False,
) -> list[str]:
    """Return a line for each difference that keeps a plan from continuing the run of a folder.

    `moved` ignores the base URL, and `grows` tasks without an answer. Raises RunFolderError if the
    folder holds no run.
    """
    old_plan, old_prints, _ = _read_stored(path)
    found, wanted = (
        msgspec.json.decode(msgspec.json.encode({"plan": p, "fingerprints": f}))
        for p, f in ((old_plan, old_prints), (plan, fingerprints))
    )
    for content in (found, wanted):
        for field in FREE_FIELDS:
            del content["plan"][field]
        if moved:
            options = content["plan"]["launcher"]["options"]
            options.pop("base_url", None)
            options.pop("servers", None)
    drop_mutable_parts(found, wanted)
    for content in (found, wanted):
        content["plan"]["tasks"] = name_tasks(content["plan"]["tasks"])
        if grows:
            for named in (content["plan"]["tasks"], content["fingerprints"]):
                for name in [one for one in named if not is_bound_to(path, one)]:
                    del named[name]
    return differences(found, wanted)


def name_tasks(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options of stored tasks by name, since their order changes nothing."""
    return {task["name"]: task["options"] for task in tasks}


def bind(
    path: Path,
    plan: Plan,
    fingerprints: Mapping[str, Mapping[str, str]],
    *,
    moved: bool = False,
    own: bool = False,
    grows: bool = False,
) -> None:
    """Save the plan of a folder that is held, and make the folders in it.

    Raises RunFolderError if the folder has answers to another plan.
    """
    _save_plan(path, plan, fingerprints, moved=moved, own=own, grows=grows)
    for name in (SAMPLES, SCORES, LOGS):
        (path / name).mkdir(mode=0o700, exist_ok=True)


def _save_plan(
    path: Path,
    plan: Plan,
    fingerprints: Mapping[str, Mapping[str, str]],
    *,
    moved: bool,
    own: bool,
    grows: bool,
) -> None:
    asked = is_bound(path)
    if asked or (path / PLAN_FILE).exists():
        old_plan, old_prints, was_own = _read_stored(path)
        differing = list_differences(path, plan, fingerprints, moved=moved, grows=grows)
        if asked and differing:
            raise RunFolderError(
                f"{path} holds another run:\n" + "\n".join(f"  {line}" for line in differing),
                hint="Use another folder with -o, or continue that run with --resume.",
            )
        if differing:
            _begin_again(path)
        elif not moved:
            later = replace(old_plan, tasks=plan.tasks, early_stop=plan.early_stop)
            later = replace(later, repeats=plan.repeats, repeats_of=plan.repeats_of)
            later = replace(later, expect=plan.expect, accept_identical=plan.accept_identical)
            if own and not was_own:  # the saved connection is not trusted
                later = replace(later, connection=plan.connection)
            if later == old_plan and fingerprints == old_prints and was_own >= own:
                return
            plan, own = later, own or was_own  # later commands read it
    saved: dict[str, object] = {
        FORMAT_KEY: FOLDER_FORMAT,
        "plan": plan,
        "fingerprints": fingerprints,
    }
    write_private(
        path / PLAN_FILE, pretty_json(ownership.add_signature(saved, path) if own else saved)
    )


def _begin_again(path: Path) -> None:
    """Remove what belongs to the earlier plan of a folder, none of which is an answer."""
    forget_sessions(path)
    for name in (LOOKS_FILE, IDENTITY_FILE, PROOFS_FILE, TRACE_FILE, REPORT_FILE, *PAGES):
        (path / name).unlink(missing_ok=True)
    for folder in (SAMPLES, SCORES):
        for file in (path / folder).glob("*.jsonl"):
            file.unlink()


def drop_mutable_parts(*stored: dict[str, Any]) -> None:
    """Remove from two stored plans the parts of user cases that may change.

    These are the cases, their files and their scoring. Options for all cases, such as a
    temperature, stay, since the ids do not reflect them.
    """
    both = set.intersection(*({task["name"] for task in one["plan"]["tasks"]} for one in stored))
    for one in stored:
        one["fingerprints"] = {
            name: found for name, found in one["fingerprints"].items() if not is_mutable(name)
        }
        one["plan"]["tasks"] = [
            _drop_own_options(task)
            for task in one["plan"]["tasks"]
            if task["name"] in both or not is_mutable(task["name"])
        ]


def _drop_own_options(task: dict[str, Any]) -> dict[str, Any]:
    """Return a stored task. Options that select its cases are removed if the task is mutable."""
    if not is_mutable(task["name"]):
        return task
    own = registry.options_of(registry.load("serve_eval.tasks", task["name"]))
    return {
        "name": task["name"],
        "options": {k: v for k, v in task["options"].items() if k not in own},
    }


class _Ending(msgspec.Struct):
    """The part of a record that says that its sample failed."""

    failure: msgspec.Raw = msgspec.Raw()


_ending = msgspec.json.Decoder(_Ending)


def holds_more_than_failures(journal: Path) -> bool:
    """Return True if a line of a journal is no failure, or cannot be read.

    A torn last line counts as nothing: its sample is asked again. False if there is no journal.
    """
    try:
        with journal.open("rb") as lines:
            return any(line.endswith(b"\n") and not _is_failure(line) for line in lines)
    except FileNotFoundError:
        return False


def _is_failure(line: bytes) -> bool:
    try:
        return bytes(_ending.decode(line).failure) not in (b"", b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


class CopyMark(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a copy, the hash of its plan, and if it is complete."""

    schema_version: int = 1
    sources: tuple[str, ...] = ()
    plan: str = ""
    done: bool = False


def find_copy(path: Path) -> CopyMark | None:
    """Return the mark of a folder, or None for a folder of no copy.

    A mark that cannot be read is not ours: ours are written whole. Nothing is emptied then.
    """
    try:
        return msgspec.json.decode((path / COPY_FILE).read_bytes(), type=CopyMark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return CopyMark(done=True)


def is_unfinished_copy(path: Path) -> bool:
    """Return True if a folder lacks answers that its command will copy."""
    mark = find_copy(path)
    return mark is not None and not mark.done


def forget_copy(path: Path) -> None:
    """Remove the mark of a complete copy, which then is a run like any other."""
    (path / COPY_FILE).unlink(missing_ok=True)
