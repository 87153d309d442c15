"""Read the runs of a folder that is to be diagnosed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.plugins.scope import with_scope
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.reports.story_results import locate_runs
from serve_eval.storage.story_files import COMPARE
from serve_eval.workflows.diagnose.ended import has_only_end
from serve_eval.workflows.diagnose.evidence import Evidence, read
from serve_eval.workflows.diagnose.finding import SIDE_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFolder:
    """The runs of a folder by label. `compared`: they are the sides of a comparison."""

    folder: Path
    runs: Sequence[tuple[str, Evidence]]
    compared: bool


@with_scope
def read_folder(folder: Path, include_path: Sequence[str] = ()) -> ReadFolder:
    """Read the folder of a run, a comparison or a suite. Raises RunFolderError."""
    compared = COMPARE.has_plan(folder)
    share = SIDE_SHARE if compared else 1.0
    runs = [
        (label, read(path, include_path=include_path, share=share)) for label, path in _runs(folder)
    ]
    return ReadFolder(folder=folder, runs=runs, compared=compared)


def _runs(folder: Path) -> list[tuple[str, Path]]:
    """Return the run folders to diagnose, each with its label."""
    if COMPARE.has_plan(folder):
        return locate_runs(folder)
    if has_only_end(folder) and not (folder / SUITE_RUNS).is_dir():
        return []
    if (folder / SUITE_RUNS).is_dir() and not run_folder.holds_run(folder):
        found = sorted(
            path for path in (folder / SUITE_RUNS).iterdir() if run_folder.holds_run(path)
        )
        if not found and not has_only_end(folder):
            raise RunFolderError(f"{folder / SUITE_RUNS} holds no run", hint="Run the suite first.")
        return [(path.name, path) for path in found]
    return [("", folder)]
