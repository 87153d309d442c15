"""Find the folders below a folder whose commands ended without a result.

They hold a plan but no result. A command that ended by itself left its line in summary.md; one that
was killed left none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from serve_eval.errors import RunFolderError
from serve_eval.shell_words import quote_path
from serve_eval.storage.file_names import SUMMARY_FILE
from serve_eval.storage.folder_lock import check_unused
from serve_eval.storage.story_files import STORIES, find_maker, name_command

_BEGUN: Final = tuple(story for story in STORIES if story.plan and story.result)
_RESULTS: Final = {story.result for story in STORIES if story.result}
_RESUMED: Final = ("run", "suite")
"""The commands that need only the folder to go on."""
KILLED: Final = "KILLED"
_LINE = re.compile(r"(ERROR|INTERRUPTED|INCONCLUSIVE) (.*?): no result(?:; )?(.*)")
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
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
        yield _read(here, found.plan, found.command)


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


def _read(folder: Path, plan: str, command: str) -> EndedEarly:
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
