"""Explain why a folder that should hold a run holds none."""

from __future__ import annotations

from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import (
    BISECTION_PLAN,
    COMPARISON_PLAN,
    INVARIANTS_PLAN,
    LOAD_PLAN,
    PLAN_FILE,
    SUITE_FILE,
    TAKEN_PLAN,
)

ADVICE = "Name the folder that serve-eval run -o wrote, such as outputs/RUN."
STORIES = {
    COMPARISON_PLAN: ("a comparison", "a or b"),
    SUITE_FILE: ("a suite", "runs/NAME"),
    INVARIANTS_PLAN: ("invariants", "one of its passes"),
    LOAD_PLAN: ("load", "one of its loads"),
    BISECTION_PLAN: ("a bisection", "runs/NAME"),
    TAKEN_PLAN: ("a reference", "run_1"),
}
"""The file that marks the folder of another command, what such a folder is, and where its runs
are."""


def explain_missing_run(path: Path) -> RunFolderError:
    """Return the error for a path that is not a run folder, with what it is instead."""
    if not path.exists():
        return RunFolderError(f"{path} holds no run: there is no such folder", hint=ADVICE)
    if not path.is_dir():
        return RunFolderError(f"{path} holds no run: it is a file, not a folder", hint=ADVICE)
    for sign, (story, runs) in STORIES.items():
        if (path / sign).exists():
            return RunFolderError(
                f"{path} holds no run: it is the folder of {story}",
                hint=f"Its runs are folders in it: name {path}/{runs}.",
            )
    if next(path.iterdir(), None) is None:
        return RunFolderError(f"{path} holds no run: the folder is empty", hint=ADVICE)
    if below := sorted(one.parent for one in path.glob(f"*/{PLAN_FILE}")):
        return RunFolderError(
            f"{path} is a folder of runs, not a run",
            hint=f"Name one of its {len(below)}, such as {below[0]}.",
        )
    return RunFolderError(f"{path} holds no run: there is no {PLAN_FILE}", hint=ADVICE)
