"""Run `serve-eval capsule`: write a folder that replays one request of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._common_options import ScreenOptions
from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import LATEST, name_run


@command()
def capsule(
    faces: ScreenOptions,
    sample: Annotated[list[str], typer.Option("--sample", help="Id of a sample. Repeatable.")],
    task: Annotated[
        str | None,
        typer.Option("--task", help="Task of the sample, if several tasks have that id."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder for the capsules (default RUN/capsules)."),
    ] = None,
    allow_holdout: Annotated[
        bool,
        typer.Option(
            "--allow-holdout", help="Allow samples of a hold-out set; their texts are written."
        ),
    ] = False,
    include_path: IncludePath = None,
    run: Annotated[Path, name_run("A run folder (default latest).")] = LATEST,
) -> None:
    """Write the request of a sample, a curl script that repeats it, and both answers.

    The answers are the expected one and the one received. Nothing is sent. Keys are written as
    variables. The data set of the run must be present.

    Exit codes: 0 written, 2 usage, or a folder or data that cannot be used.
    """
    from serve_eval.cli._ending import print_result
    from serve_eval.evaluation.storage.file_names import CAPSULES
    from serve_eval.workflows.capsule.capsule import capsules
    from serve_eval.workflows.capsule.document import make_document

    folders = capsules(
        run,
        sample,
        output_dir or run / CAPSULES,
        task=task,
        include_path=folders_of(include_path),
        allow_holdout=allow_holdout,
    )
    print_result(make_document(run, folders), faces)
