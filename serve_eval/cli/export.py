"""Run `serve-eval export`: write a finished run in the file format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._run_folder import name_run

FORMATS = ("lm-eval",)


def export(
    run: Annotated[Path, name_run("A run folder with a report, or latest.")],
    to_format: Annotated[
        str,
        typer.Option(
            "--format", help="lm-eval, which writes results_*.json and samples_*.jsonl (default)."
        ),
    ] = "lm-eval",
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder for the files (default RUN/lm-eval)."),
    ] = None,
    include_path: IncludePath = None,
) -> None:
    """Write the results and samples of a run in the file format of lm-evaluation-harness."""
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.plugins.registry import nearest
    from serve_eval.report.text import clean
    from serve_eval.workflows.export import export as written

    if to_format not in FORMATS:
        raise PlanError(f"--format: unknown format {to_format!r}.{nearest(to_format, FORMATS)}")
    exported = written(run, output_dir, include_path=folders_of(include_path))
    emit("".join(f"{clean(str(file))}\n" for file in exported.files))
    for note in exported.notes:
        say(f"warning: {clean(note)}")
