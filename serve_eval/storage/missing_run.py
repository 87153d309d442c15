"""Explain why a folder that should hold a run holds none."""

from __future__ import annotations

import json
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.storage.file_names import PLAN_FILE, SUITE_RUNS
from serve_eval.storage.story_files import STORIES

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
