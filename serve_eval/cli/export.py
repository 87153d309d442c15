"""Run `serve-eval export`: write a finished run in the file format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._run_folder import LATEST, name_run

FORMATS = ("lm-eval", "biochatter")


def export(
    run: Annotated[
        Path,
        name_run("A run with a report (default latest); for biochatter also a folder of runs."),
    ] = LATEST,
    to_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="lm-eval (default): results_*.json and samples_*.jsonl. biochatter: CSV files by"
            " task, and tables of all models.",
        ),
    ] = "lm-eval",
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="Folder for the files (default RUN/ and the format)."
        ),
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.csv",
            help="A result file of BioChatter that the tables also hold. Repeatable.",
        ),
    ] = None,
    include_path: IncludePath = None,
) -> None:
    """Write the results and samples of a run in the file format of another tool."""
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.plugins.registry import nearest
    from serve_eval.report.text import clean

    if to_format == "csv":
        raise PlanError("--format csv has a command of its own", hint="serve-eval collect RUN...")
    if to_format not in FORMATS:
        raise PlanError(f"--format: unknown format {to_format!r}.{nearest(to_format, FORMATS)}")
    if add and to_format != "biochatter":
        raise PlanError("--add is for --format biochatter")
    if to_format == "biochatter":
        from serve_eval.workflows.biochatter.export import export_biochatter

        to = output_dir or run / "biochatter"
        tables = export_biochatter(run, to, more=add or (), include_path=folders_of(include_path))
        files, notes = tables.files, tables.notes
    else:
        from serve_eval.workflows.export import export as written

        exported = written(run, output_dir, include_path=folders_of(include_path))
        files, notes = exported.files, exported.notes
    emit("".join(f"{clean(str(file))}\n" for file in files))
    for note in notes:
        say(f"warning: {clean(note)}")
