"""Find the run folders that a user means: a run, both arms of a comparison, or one of many runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.frozen import freeze_places
from serve_eval.plugins.registry import nearest
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import Plan
from serve_eval.shell_words import quote_path
from serve_eval.storage import run_folder
from serve_eval.storage.story_files import COMPARE
from serve_eval.storage.story_results import locate_runs

MOST_DEEP, MOST_LISTED = 3, 12
"""Folders between a folder and a run in it, and runs that an error names."""


@freeze_places
class ChosenRun:
    """A run folder with its plan. `label` is A or B for an arm of a comparison, else empty."""

    label: str
    folder: Path
    plan: Plan

    def sources(self, task: str | None) -> list[SampleSource]:
        """Return its tasks, or only the one of that name. Raises PlanError for an unknown name."""
        names = list(run_folder.read_fingerprints(self.folder))
        if task is not None and task not in names:
            raise PlanError(f"--task {task}: the run has no such task.{nearest(task, names)}")
        return [
            SampleSource(run=self.folder, task=name, repeated=self.plan.times(name) > 1)
            for name in names
            if task in (None, name)
        ]


def find_runs(folder: Path, against: Path | None = None) -> list[ChosenRun]:
    """Return the run in a folder, or two runs that are compared.

    Two are returned for a comparison, and with `against`: that run first. Raises RunFolderError for
    a folder without a run, and for one with several, which are named.
    """
    if against is None and COMPARE.has_plan(folder):
        return [_read(label, path) for label, path in locate_runs(folder)]
    if against is None:
        return [_read("", _only_run(folder))]
    return [_read("A", _only_run(against)), _read("B", _only_run(folder))]


def _read(label: str, folder: Path) -> ChosenRun:
    here = Path.cwd()
    if folder.is_absolute() and folder.is_relative_to(here):
        folder = folder.relative_to(here)  # a comparison names its finished runs in full
    return ChosenRun(label, folder, run_folder.read_plan(folder))


def _only_run(folder: Path) -> Path:
    if run_folder.holds_run(folder):
        return folder
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such folder", hint="Name the folder of a run.")
    found = sorted(_runs_below(folder))
    if len(found) == 1:
        return found[0]
    if not found:
        raise RunFolderError(f"{folder} holds no run", hint="Name the folder of a run.")
    lines = [f"  {quote_path(one)}" for one in found[:MOST_LISTED]]
    if len(found) > MOST_LISTED:
        lines.append(f"  and {len(found) - MOST_LISTED} more")
    raise RunFolderError(
        f"{folder} holds {len(found)} runs. Name one of them:\n" + "\n".join(lines)
    )


def _runs_below(folder: Path) -> Iterator[Path]:
    """Yield the run folders in a folder. Links are not followed."""
    for path, folders, _ in os.walk(folder):
        place = Path(path)
        if run_folder.holds_run(place):
            folders.clear()
            yield place
        elif len(place.relative_to(folder).parts) >= MOST_DEEP:
            folders.clear()
