"""Find the results of comparisons, checks and suites below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.schema import VerdictOutcome
from serve_eval.storage.file_names import PLAN_FILE, REPORT_FILE
from serve_eval.storage.reports.served import name_served, shorten_url
from serve_eval.storage.story_files import STORIES, StoryFiles
from serve_eval.verdicts.exit_code import FAIL, INFRASTRUCTURE, PASS

_LISTED: Final = tuple(story for story in STORIES if story.listed and story.result)
_OUTCOMES: Final = {
    PASS: VerdictOutcome.PASS,
    FAIL: VerdictOutcome.FAIL,
    INFRASTRUCTURE: VerdictOutcome.ERROR,
}
"""The outcomes of exit codes; the others are undecided."""


_ADDRESS: Final = re.compile(r"://|:\d+(/|$)|^[\d.]+$")
"""Matches the address of a server, but no name and no path of a file."""
_MAJORITY: Final = "the majority"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderResult:
    """The result of a comparison, a check or a suite.

    `subject` says what was judged, in words that are the same every night. `value` has the values
    of both sides of a comparison ("" for other results). `rehearsal`: the stand-in answered.
    """

    folder: Path
    command: str
    subject: str
    began: datetime
    outcome: VerdictOutcome
    value: str = ""
    rehearsal: bool = False


class _Marked(msgspec.Struct):
    rehearsal: bool = False


def is_of_stand_in(folder: Path) -> bool:
    """Return True if a result in a folder, of a run or of another command, says so.

    A file that cannot be read says nothing.
    """
    for name in (REPORT_FILE, *(story.result for story in _LISTED)):
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            if msgspec.json.decode((folder / name).read_bytes(), type=_Marked).rehearsal:
                return True
    return False


def list_results(
    folder: Path, notes: list[str], *, most_deep: int, most_folders: int
) -> Iterator[FolderResult]:
    """Yield the results below a folder, in the order of names. `notes` gets what is damaged.

    Results within the folder of another one, such as those of each load, belong to that.
    """
    for seen, (path, folders, files) in enumerate(os.walk(folder)):
        here = Path(path)
        if seen >= most_folders or PLAN_FILE in files or REPORT_FILE in files:
            folders.clear()
            continue
        story = next((one for one in _LISTED if one.result in files), None)
        if story is not None:
            folders.clear()
            try:
                yield _read(here, story)
            except RunFolderError as error:
                notes.append(f"left out: {error}")
        elif len(here.relative_to(folder).parts) >= most_deep:
            folders.clear()
        folders.sort()


def _read(folder: Path, story: StoryFiles) -> FolderResult:
    """Return a result. Raises RunFolderError for a file that is damaged."""
    file = folder / story.result
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        began = datetime.fromisoformat(stored["started_at"])
        code = stored["exit_code"]
        subject = _describe(stored)
        if plans := _name_plans(folder, stored):
            subject = f"{subject}: {plans}"
        value = _show_values(stored)
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    return FolderResult(
        folder=folder,
        command=story.command,
        subject=subject,
        began=began if began.tzinfo else began.replace(tzinfo=UTC),
        outcome=_OUTCOMES.get(code, VerdictOutcome.INCONCLUSIVE),
        value=value,
        rehearsal=bool(stored.get("rehearsal")),
    )


def _name_plans(folder: Path, stored: Mapping[str, Any]) -> str:
    """Return the plans of the servers that a result is about, as far as they were started for it.

    `serve -o` recorded them in a folder next to that of the result, with their addresses.
    """
    served = name_served(folder)
    sides = [stored[side] for side in "ba" if side in stored] or list(stored.get("sides", ()))
    used = [str(one.get("base_url") or one.get("name", "")) for one in sides]
    if "sides" in stored:
        used = [*reversed(used), str(stored.get("reference", ""))]
    if not sides:
        used = [str(stored.get("base_url", ""))] if "rows" in stored else []
    names = [served[place] for one in used if (place := shorten_url(one)) in served]
    return " against ".join(dict.fromkeys(names))


def _show_values(stored: Mapping[str, Any]) -> str:
    """Return "B 53.5 / A 89.5" for each task of a comparison, "" for another result."""
    shown = list[str]()
    for task in stored.get("tasks", ()):
        if "a" in task and "b" in task:
            a, b = (task[side]["value"] for side in "ab")
            if a is not None and b is not None:
                shown.append(f"B {b:.1f} / A {a:.1f}")
    return ", ".join(shown)


def _describe_verified(stored: Mapping[str, Any]) -> str:
    """Return the servers, the model and the reference that a verification judged.

    Ports and pods change every night, so that servers without names are only counted.
    """
    sides = [one for one in stored["sides"] if one.get("part_of") is None]
    names = [str(one["name"]) for one in (*sides, *stored.get("lost", ()))]
    roles = sorted(one for one in names if not _ADDRESS.search(one))
    addresses = len(names) - len(roles)
    if addresses:
        roles.append(f"{addresses} server{'s'[: addresses > 1]}")
    words = [", ".join(roles)]
    if model := stored.get("model"):
        words.append(f"of {model}")
    if reference := str(stored.get("reference", "")):
        majority = reference.startswith(_MAJORITY)
        other = "the majority" if majority else "a server"
        known = not majority and not _ADDRESS.search(reference)
        words.append(f"against {Path(reference).name if known else other}")
    return " ".join(words)


def _describe(stored: Mapping[str, Any]) -> str:
    """Return what a result judges: the tasks, and the model, the servers or the suite."""
    tasks = [str(one["task"]) for one in stored.get("tasks", ()) if "task" in one]
    words = [", ".join(dict.fromkeys(tasks))]
    if "a" in stored and "b" in stored:
        a, b = stored["a"]["model"], stored["b"]["model"]
        words.append(f"of {b}" if a == b else f"of {b} against {a}")
    elif "sides" in stored:
        words.append(_describe_verified(stored))
    else:
        named = stored.get("name") or stored.get("model")
        words.append("" if named is None else f"of {named}" if tasks else str(named))
    return " ".join(filter(None, words))
