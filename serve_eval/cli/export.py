"""Run `serve-eval export`: write finished runs in other formats, or as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._run_folder import LATEST, name_runs

FILES, TABLES = ("lm-eval", "biochatter"), ("table", "csv", "markdown", "latex", "svg")


def export(
    runs: Annotated[
        list[Path],
        name_runs("Run folders (default latest); for tables and biochatter also folders of runs."),
    ] = [LATEST],  # noqa: B006
    to_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="lm-eval (default): results_*.json and samples_*.jsonl of one run. biochatter:"
            " CSV files by task, and tables of all models. table, csv, markdown, latex or svg: one"
            " table of deployments by tasks, with 95 % intervals.",
        ),
    ] = "lm-eval",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "--output",
            "-o",
            help="Folder for the files (default RUN/ and the format); for a table a file (default:"
            " print).",
        ),
    ] = None,
    each: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Of a table: a row for each run, also of one deployment (default: the latest).",
        ),
    ] = False,
    differences: Annotated[
        bool,
        typer.Option(
            "--differences",
            help="Of a table: paired differences from the reference of each run, with 95 %"
            " intervals and stars by Holm.",
        ),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The row that the differences are from, instead of the reference.",
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
    """Write runs in the file format of another tool, or as one table of models by tasks."""
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.plugins.registry import nearest
    from serve_eval.report.text import clean

    if to_format not in FILES + TABLES:
        raise PlanError(
            f"--format: unknown format {to_format!r}.{nearest(to_format, FILES + TABLES)}"
        )
    if add and to_format != "biochatter":
        raise PlanError("--add is for --format biochatter")
    if each and to_format not in TABLES:
        raise PlanError(f"--all is for the formats {', '.join(TABLES)}")
    if baseline is not None and not differences:
        raise PlanError("--baseline is for --differences", hint="Add --differences.")
    if differences and to_format not in TABLES:
        raise PlanError(f"--differences is for the formats {', '.join(TABLES)}")
    if to_format in TABLES:
        shown = (baseline or "") if differences else None
        _write_table(runs, to_format, output, each=each, baseline=shown)
        return
    if to_format == "biochatter":
        from serve_eval.workflows.biochatter.export import export_biochatter

        to = output or runs[0] / "biochatter"
        tables = export_biochatter(runs, to, more=add or (), include_path=folders_of(include_path))
        files, notes = tables.files, tables.notes
    else:
        from serve_eval.workflows.export.export import export as written

        if len(runs) > 1:
            raise PlanError(
                f"--format lm-eval writes one run, and {len(runs)} are named",
                hint="Call it for each run, or choose a table: --format table",
            )
        exported = written(runs[0], output, include_path=folders_of(include_path))
        files, notes = exported.files, exported.notes
    emit("".join(f"{clean(str(file))}\n" for file in files))
    for note in notes:
        say(f"warning: {clean(note)}")


def _write_table(
    folders: Sequence[Path], name: str, to: Path | None, *, each: bool, baseline: str | None
) -> None:
    """Print the table of some folders, or write it to a file.

    With a `baseline` it has differences; "" stands for the reference.
    """
    from serve_eval.cli._streams import draw, emit, path_of, say
    from serve_eval.errors import PlanError
    from serve_eval.report.results_table import show_differences, write_table, write_text
    from serve_eval.series.differences import compare_rows
    from serve_eval.series.result_table import read_results
    from serve_eval.whole_file import write_named_file

    table = read_results(folders, each=each)
    if baseline is not None:
        table = compare_rows(table, baseline)
    if to is None and name == "table":
        shown = show_differences(table)
        draw(lambda console: console.out(write_text(shown, console.width), end=""))
        return
    text = write_table(table, name)
    if to is None:
        emit(text)
        return
    try:
        write_named_file(path_of(to), text.encode(errors="backslashreplace"))
    except OSError as error:
        raise PlanError(f"{to}: cannot be written: {error.strerror}") from error
    say(f"{to}: {len(table.rows)} deployments, {len(table.columns)} tasks")
