"""The folder of a bisection: bound to what is searched.

bisect.json       what is searched and how: fixed before the first request
bisection.json    the steps so far, and the result
good_scores/      the scores of the good configuration
runs/<number>/    one ordinary run folder per configuration, 00 for the good one
servers/<number>/ logs of the servers
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from serve_eval.storage.file_names import BISECTION_RUNS
from serve_eval.storage.json_files import refuse_other
from serve_eval.storage.story_files import BISECT
from serve_eval.workflows.bisect.configurations import Configurations


def bind_folder(out_dir: Path, found: Configurations, margin: float | None) -> None:
    """Record what is searched, or raise RunFolderError if the folder holds another search."""
    good, bad = found.good, found.make(found.space.bad)
    content: dict[str, Any] = {
        "margin": margin,
        "changes": [change.name for change in found.changes],
        "good": {"model": good.model, "launcher": good.launcher},
        "bad": {"model": bad.model, "launcher": bad.launcher},
        "tasks": good.tasks,
        "limit": good.limit,
        "seed": good.seed,
    }
    wanted = msgspec.json.decode(msgspec.json.encode(content))
    refuse_other(out_dir, "bisection", BISECT.find_plan_content(out_dir), wanted)
    BISECT.write_plan(out_dir, content)


def locate_run(out_dir: Path, number: int) -> Path:
    """Return the run folder of a step."""
    return out_dir / BISECTION_RUNS / f"{number:02d}"
