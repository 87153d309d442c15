"""Find the results below a folder, or the commands that ended without one.

They hold a plan but no result. A command that ended by itself left its line in summary.md; one that
was killed left none.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.frozen import freeze
from serve_eval.schema import VerdictOutcome
from serve_eval.shell_words import quote_path
from serve_eval.storage.command_folder import OUTPUTS, check_unused
from serve_eval.storage.file_names import PLAN_FILE, REPORT_FILE, SUMMARY_FILE, journals_below
from serve_eval.storage.run_folder import check_unused as check_unlocked
from serve_eval.storage.run_folder import is_unfinished_copy
from serve_eval.storage.story_files import SERVE, STORIES, StoryFiles, find_maker, name_command
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


@freeze
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


def name_served(folder: Path) -> dict[str, str]:
    """Return the names of the plans of these servers, by `shorten_url` of their address."""
    return {place: str(told["name"]) for place, told in _list_served(folder) if "name" in told}


def find_served_plans(folder: Path) -> dict[str, str]:
    """Return the plans of these servers, as the user named them, by `shorten_url`."""
    return {place: str(told["plan"]) for place, told in _list_served(folder) if told.get("plan")}


def _list_served(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in sorted(folder.absolute().parent.glob(f"*/{SERVE.result}")):
        with suppress(OSError, msgspec.MsgspecError):
            told = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            yield shorten_url(str(told.get("base_url", ""))), told


def shorten_url(url: str) -> str:
    """Return an address without what the ways to write it differ by."""
    return url.removeprefix("http://").rstrip("/").removesuffix("/v1")


_BEGUN: Final = tuple(story for story in STORIES if story.plan and story.result)
_RESULTS: Final = {story.result for story in STORIES if story.result}
_RESUMED: Final = ("run", "suite")
"""The commands that need only the folder to go on."""
KILLED: Final = "KILLED"
_LINE = re.compile(r"(ERROR|INTERRUPTED|INCONCLUSIVE) (.*?): no result(?:; )?(.*)")
_ESCAPED = re.compile(r"\\(.)")


@freeze
class EndedEarly:
    """A command that ended without a result: its outcome, the cause that it left, and when.

    `outcome` is ERROR, INTERRUPTED, INCONCLUSIVE or KILLED. `about` is the command with what it
    was about, as far as it is known.
    """

    folder: Path
    command: str
    about: str
    outcome: str
    cause: str
    ended: datetime

    @property
    def remedy(self) -> str:
        """Return the command that goes on in the folder."""
        place = quote_path(self.folder)
        command = f"serve-eval {name_command(self.command)}"
        if self.command in _RESUMED:
            return f"{command} --resume {place}"
        return f"start its servers, then the same {command} with -o {place}"


def list_ended_early(folder: Path, *, most_deep: int, most_folders: int) -> Iterator[EndedEarly]:
    """Yield the commands without a result, in the order of names, except those that still run.

    A part of another command belongs to that.
    """
    for seen, (path, folders, files) in enumerate(os.walk(folder)):
        here = Path(path)
        found = next((one for one in _BEGUN if one.plan in files), None)
        ended = not _RESULTS.isdisjoint(files)
        deep = len(here.relative_to(folder).parts) >= most_deep
        if seen >= most_folders or found is not None or ended or deep:
            folders.clear()
        folders.sort()
        if found is None or ended or find_maker(here) or _still_runs(here):
            continue
        yield _read_cause(here, found.plan, found.command)


def read_first_line(folder: Path) -> str:
    """Return the first line of a command's summary, or "" if it wrote none."""
    try:
        text = (folder / SUMMARY_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.partition("\n")[0]


def _still_runs(folder: Path) -> bool:
    try:
        check_unused(folder)
    except RunFolderError:
        return True
    return False


def _read_cause(folder: Path, plan: str, command: str) -> EndedEarly:
    """Return how a command ended, by the first line of its summary."""
    summary, last = folder / SUMMARY_FILE, folder / plan
    outcome, about, cause = KILLED, command, ""
    if told := _LINE.match(_ESCAPED.sub(r"\1", read_first_line(folder))):
        outcome, about, last = told[1], told[2], summary
        cause = told[3].rpartition("; ")[0] or told[3]  # The place of the result comes last.
    try:
        ended = datetime.fromtimestamp(last.stat().st_mtime, UTC)
    except OSError:
        ended = datetime.fromtimestamp(0, UTC)
    return EndedEarly(
        folder=folder, command=command, about=about, outcome=outcome, cause=cause, ended=ended
    )


CONTINUED_DAYS = 3
"""Age of the last answer in days up to which a folder is continued. Servers change meanwhile."""


def list_unfinished(sign: str, is_finished: Callable[[Path], bool]) -> Iterator[tuple[Path, float]]:
    """Yield folders with answers and no result, the last answer first, with its age in seconds.

    `sign` is the file that marks a folder of the command. Skipped are folders in use, and those
    whose last answer is too old.
    """
    found = []
    now_s = time.time()
    for folder in OUTPUTS.iterdir() if OUTPUTS.is_dir() else ():
        if folder.is_symlink() or not (folder / sign).is_file() or is_finished(folder):
            continue
        if is_unfinished_copy(folder):
            continue
        at = read_last_answer(folder)
        if at is not None and (age_s := now_s - at) <= CONTINUED_DAYS * 86_400:
            found.append((folder, max(age_s, 0.0)))
    for folder, age_s in sorted(found, key=lambda one: one[1]):
        try:
            check_unlocked(folder)
        except RunFolderError:
            continue
        yield folder, age_s


def read_last_answer(folder: Path) -> float | None:
    """Return when the last answer of a run came, in seconds since 1970. None: there is none."""
    written = (file.stat() for file in journals_below(folder))
    return max((one.st_mtime for one in written if one.st_size), default=None)
