"""Find the run folder whose servers are asked, also in the folder of a comparison."""

from __future__ import annotations

from pathlib import Path

from serve_eval.storage.reports.story_results import locate_runs
from serve_eval.storage.story_files import COMPARE


def find_side(folder: Path) -> Path:
    """Return the run folder of B in the folder of a comparison, and any other folder as it is.

    Raises RunFolderError for a comparison whose plan is damaged.
    """
    return locate_runs(folder)[1][1] if COMPARE.has_plan(folder) else folder
