"""Declare the files that each command keeps in its folder, to explain a missing run.

All plans and results are read, checked, written and dropped in the same way. The plan of a run and
of a suite is signed too, and their reports have errors of their own (`report_file`, `suite_files`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.storage.file_names import PAGES, PLAN_FILE, REPORT_FILE, SUITE_RUNS
from serve_eval.storage.json_files import (
    FORMAT_KEY,
    decode_known,
    find_content,
    find_known,
    pretty_json,
    write_private,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoryFiles:
    """The files of a command.

    `plan` fixes what is asked before the first request, and `result` holds what was found ("": the
    command has no such file). `version` is that of both which this serve-eval writes, and the
    newest that it reads. `runs` matches the paths of the run folders that are parts of the result.
    `called` says what such a folder is. `listed`: the result stands for itself in a list of
    results.
    """

    command: str
    plan: str
    result: str
    runs: str = ""
    called: str = ""
    version: int = 1
    listed: bool = True

    def has_plan(self, folder: Path) -> bool:
        """Return True if the command has begun in a folder."""
        return (folder / self.plan).is_file()

    def find_plan(self, folder: Path, of: type[T]) -> T | None:
        """Return what a folder asks, or None for a new folder.

        Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
        """
        return find_known(folder / self.plan, of, self.version)

    def find_plan_content(self, folder: Path) -> dict[str, Any] | None:
        """Return what a folder asks as JSON values without the version. Raises as `find_plan`."""
        return find_content(folder / self.plan, self.version)

    def write_plan(self, folder: Path, asked: Mapping[str, Any] | msgspec.Struct) -> None:
        """Write what is asked. Raises RunFolderError, and JournalError for a full disk."""
        content = msgspec.structs.asdict(asked) if isinstance(asked, msgspec.Struct) else asked
        write_private(folder / self.plan, pretty_json({FORMAT_KEY: self.version, **content}))

    def find(self, folder: Path, of: type[T]) -> T | None:
        """Return the result, or None without one that can be read.

        Raises RunFolderError for one that a newer serve-eval wrote.
        """
        try:
            return decode_known(folder / self.result, of, self.version)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def read(self, folder: Path, of: type[T]) -> T | None:
        """Return the result, or None for a folder without one.

        Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
        """
        return find_known(folder / self.result, of, self.version)

    def write(self, folder: Path, found: object) -> None:
        """Write the result. Raises RunFolderError, and JournalError for a full disk."""
        write_private(folder / self.result, pretty_json(found))

    def drop(self, folder: Path) -> None:
        """Remove the result and its pages, which describe an earlier state."""
        for name in (self.result, *PAGES):
            (folder / name).unlink(missing_ok=True)


COMPARE = StoryFiles(
    "compare", "compare.json", "comparison.json", "a|b|again|again_b", "a comparison"
)
COMPARE_AT_LOADS = StoryFiles("compare", "", "load_comparison.json")
SUITE = StoryFiles("suite", "suite.json", "suite_report.json", called="a suite")
LOAD = StoryFiles("load", "load_plan.json", "load.json", r"\d+(_again)?", "load")
TOOLS = StoryFiles("tools", "tools_plan.json", "tools.json", r"(whole|stream)_\d+", "tools")
INVARIANTS = StoryFiles(
    "invariants", "invariants_plan.json", "invariants.json", "[^/]+", called="invariants"
)
CANARIES = StoryFiles("invariants", "canary_plan.json", "canaries.json")
VERIFY = StoryFiles("verify", "verify_plan.json", "verification.json")
SMOKE = StoryFiles("smoke", "", "smoke.json")
SERVE = StoryFiles("serve", "", "served.json")
BISECT = StoryFiles(
    "bisect", "bisect.json", "bisection.json", "runs/[^/]+", "a bisection", listed=False
)
TAKE = StoryFiles("references take", "references.json", "", r"run_\d+", "a reference")
ATTRIBUTE = StoryFiles("attribute", "", "attribution.json", listed=False)
RUN = StoryFiles("run", PLAN_FILE, REPORT_FILE, listed=False)

_COMMANDS: Final = {
    "suite": "run",
    "load": "check load",
    "tools": "check tools",
    "invariants": "check invariants",
    "attribute": "check workers",
    "view": "runs view",
    "collect": "runs table",
    "drift": "runs trend",
    "export": "runs export",
    "merge": "runs merge",
    "rescore": "judge --rescore",
    "power": "references power",
    "capsule": "show --capsule",
    "init": "setup init",
    "doctor": "setup doctor",
}


def name_command(story: str) -> str:
    """Return the words after `serve-eval` for a story by the name that files have of it."""
    return _COMMANDS.get(story, story)


STORIES: Final = (
    COMPARE_AT_LOADS, COMPARE, SUITE, LOAD, TOOLS, INVARIANTS, CANARIES, VERIFY, SMOKE, SERVE,
    BISECT, TAKE, ATTRIBUTE, RUN,
)  # fmt: skip
"""All of them. If several have a result in one folder, the first counts."""


def find_maker(run: Path) -> str:
    """Return the command of whose result a run is a part, from its place; "" if of none."""
    place = run.resolve()
    for folder in (place.parent, place.parent.parent):
        part = place.relative_to(folder).as_posix()
        for story in STORIES:
            if story.runs and re.fullmatch(story.runs, part) and story.has_plan(folder):
                return story.command
    return ""


ADVICE = "Name the folder that serve-eval run -o wrote, such as outputs/RUN."
SHOWN = 3
"""Runs of such a folder that an error names."""


def explain_missing_run(path: Path) -> RunFolderError:
    """Return the error for a path that is not a run folder, with what it is instead."""
    if not path.exists():
        return RunFolderError(f"{path} holds no run: there is no such folder", hint=ADVICE)
    if not path.is_dir():
        return RunFolderError(f"{path} holds no run: it is a file, not a folder", hint=ADVICE)
    for story in STORIES:
        if story.called and story.has_plan(path):
            return RunFolderError(
                f"{path} holds no run: it is the folder of {story.called}",
                hint=_name_runs(path, story.plan),
            )
    if next(path.iterdir(), None) is None:
        return RunFolderError(f"{path} holds no run: the folder is empty", hint=ADVICE)
    if below := sorted(one.parent for one in path.glob(f"*/{PLAN_FILE}")):
        return RunFolderError(
            f"{path} is a folder of runs, not a run",
            hint=f"Name one of its {len(below)}, such as {below[0]}.",
        )
    return RunFolderError(f"{path} holds no run: there is no {PLAN_FILE}", hint=ADVICE)


def _name_runs(path: Path, sign: str) -> str:
    """Return what to do with the folder of another command: name one of its runs, if it has any.

    The sides of a comparison may be runs elsewhere, which its plan names.
    """
    below = sorted({*path.glob(f"*/{PLAN_FILE}"), *path.glob(f"{SUITE_RUNS}/*/{PLAN_FILE}")})
    runs = [str(file.parent) for file in below] or _read_sides(path / sign)
    if not runs:
        return "It has no run yet: repeat the command that began it."
    more = f" (it has {len(runs)})" if len(runs) > SHOWN else ""
    return f"Name one of its runs: {', '.join(runs[:SHOWN])}{more}."


def _read_sides(plan: Path) -> list[str]:
    """Return the folders of finished runs that a comparison names as its sides."""
    try:
        content = json.loads(plan.read_bytes())
    except (OSError, ValueError):
        return []
    sides = [content.get(side) for side in ("a", "b")] if isinstance(content, dict) else []
    return [str(one["run"]) for one in sides if isinstance(one, dict) and "run" in one]
