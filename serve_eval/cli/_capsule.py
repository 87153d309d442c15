"""Write folders that replay requests of a run, for `serve-eval show --capsule`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.cli._common_options import ScreenOptions


def write_capsules(
    run: Path,
    ids: Sequence[str],
    faces: ScreenOptions,
    *,
    output_dir: Path | None,
    task: str | None,
    include_path: Sequence[str],
    allow_holdout: bool,
) -> None:
    """Write a capsule of each sample, and print where they are.

    Raises PlanError without an id, and errors of a folder or data that cannot be used.
    """
    from serve_eval.cli._ending import print_result
    from serve_eval.errors import PlanError
    from serve_eval.storage.file_names import CAPSULES
    from serve_eval.workflows.capsule.capsule import capsules, make_document

    if not ids:
        raise PlanError(
            "--capsule: name a sample, as in serve-eval show RUN ID --capsule",
            hint="serve-eval show RUN lists the ids of its samples.",
        )
    folders = capsules(
        run,
        ids,
        output_dir or run / CAPSULES,
        task=task,
        include_path=include_path,
        allow_holdout=allow_holdout,
    )
    print_result(make_document(run, folders), faces)
