"""Run `serve-eval runs export`: write finished runs in other formats, or as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import LATEST, IncludePath, folders_of, name_runs
from serve_eval.cli._streams import STDOUT, draw, emit, path_of
from serve_eval.cli.judge import JudgedAgainOptions, choose_plan
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze

if TYPE_CHECKING:
    from serve_eval.report.results_table import ResultsTable
    from serve_eval.workflows.export import Exported

FILES, TABLES = ("lm-eval", "biochatter"), ("table", "csv", "markdown", "latex", "svg")


@freeze
class ExportJudgedOptions(JudgedAgainOptions):
    """Choose how the saved plan is judged, for a table."""

    plan_only: ClassVar[tuple[str, ...]] = (
        *("no_reference", "allow_code_execution", "expect", "allow_mismatch"),
    )


@command()
def runs_export(
    judged: ExportJudgedOptions,
    faces: FaceOptions,
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
    """Write runs in the file format of another tool, or as one table of models by tasks.

    With --verdict, a table has the verdicts of that rule, as `serve-eval judge` gives them.
    """
    from serve_eval.plugins.registry import nearest

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if to_format not in FILES + TABLES:
        raise PlanError(
            f"--format: unknown format {to_format!r}.{nearest(to_format, FILES + TABLES)}"
        )
    if add and to_format != "biochatter":
        raise PlanError("--add is for --format biochatter")
    if baseline is not None and not differences:
        raise PlanError("--baseline is for --differences", hint="Add --differences.")
    for_tables = {
        "--all is": each,
        "--differences is": differences,
        "options of verdicts are": judged != ExportJudgedOptions(),
    }
    for said in (name for name, given in for_tables.items() if given and to_format not in TABLES):
        raise PlanError(f"{said} for the formats {', '.join(TABLES)}")
    if to_format in TABLES:
        table = _make_table(runs, judged, include_path, each=each)
        shown = (baseline or "") if differences else None
        raise typer.Exit(_end_table(table, to_format, output, faces, runs, baseline=shown))
    if to_format == "biochatter":
        from serve_eval.workflows.export.biochatter import export_biochatter

        to = output or runs[0] / "biochatter"
        found = export_biochatter(runs, to, more=add or (), include_path=folders_of(include_path))
    else:
        from serve_eval.workflows.export import export

        if len(runs) > 1:
            raise PlanError(
                f"--format lm-eval writes one run, and {len(runs)} are named",
                hint="Call it for each run, or choose a table: --format table",
            )
        found = export(runs[0], output, include_path=folders_of(include_path))
    raise typer.Exit(_end_files(found, to_format, faces, runs))


def _end_files(found: Exported, to_format: str, faces: FaceOptions, runs: Sequence[Path]) -> int:
    """Show which files were written, and return the exit code."""
    from serve_eval.cli._ending import end
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.export import make_document

    document = make_document(
        to_format, found.files, runs=runs, rows=found.rows, left_out=found.notes
    )
    files = [{"file": str(one), "rows": found.rows.get(one)} for one in found.files]
    figures = pretty_json({"schema_version": 1, "files": files})
    return end(document, faces, about=found.files[0].parent, figures=figures)


def _make_table(
    folders: Sequence[Path],
    judged: JudgedAgainOptions,
    include_path: Sequence[str] | None,
    *,
    each: bool,
) -> ResultsTable:
    """Return the table of some folders, with the verdicts of the rule that was asked for."""
    from dataclasses import replace

    from serve_eval.series.measured_runs import read_measured
    from serve_eval.series.result_table import tabulate
    from serve_eval.workflows.suite.execution import describe_rules, judge_measured

    runs, notes = read_measured(folders, each=each)
    if judged == ExportJudgedOptions():
        return tabulate(runs, notes)
    runs, left_out = judge_measured(runs, lambda run: choose_plan(judged, include_path, run))
    table = tabulate(runs, (*notes, *left_out))
    return replace(table, notes=(describe_rules(runs), *table.notes))


def _end_table(
    table: ResultsTable,
    name: str,
    to: Path | None,
    faces: FaceOptions,
    runs: Sequence[Path],
    *,
    baseline: str | None,
) -> int:
    """Print a table, or write it to a file and say so. Return the exit code.

    With a `baseline` it has differences; "" stands for the reference. JSON has its rows in place of
    the table on standard output.
    """
    import csv
    import io

    from serve_eval.cli._ending import end
    from serve_eval.report.results_table import write_table
    from serve_eval.series.differences import compare_rows
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.export import make_document

    if baseline is not None:
        table = compare_rows(table, baseline)
    if to is not None or not faces.as_json:
        _write_table(table, name, to)
    place = to or Path(name)
    document = make_document(
        name,
        [] if to is None else [to],
        runs=runs,
        rows={place: len(table.rows)},
        notes=[*table.rules, *table.notes, *table.details],
    )
    rows = list(csv.DictReader(io.StringIO(write_table(table, "csv"), newline="")))
    figures = pretty_json({"schema_version": 1, "file": to and str(to), "rows": rows})
    printed = faces.as_json if to is None else to not in STDOUT
    return end(document, faces, about=to or runs[0], figures=figures, printed=printed)


def _write_table(table: ResultsTable, name: str, to: Path | None) -> None:
    """Print a table, or write it to a file."""
    from serve_eval.report.results_table import show_differences, write_table, write_text
    from serve_eval.whole_file import write_named_file

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
