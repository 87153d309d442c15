"""Run `serve-eval runs table`: write the results of runs and test logs as one CSV table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

EXAMPLES = (
    ("Write a row for each task of all runs:", "serve-eval runs table outputs > results.csv"),
    (
        "Add the results in logs of TensorRT-LLM's accuracy tests:",
        "serve-eval runs table outputs test.log -o results.csv",
    ),
)


@freeze
class TableOptions:
    """Choose the file of the table."""

    title: ClassVar[str] = "Table"
    output: Annotated[
        Path | None,
        Setting("File to write (default: print).", flags=("--output", "-o"), metavar="FILE"),
    ] = None


@command(examples=EXAMPLES)
def runs_table(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR|LOG...", help="Folders with runs or logs, and logs."),
    ],
    asked: TableOptions,
    faces: FaceOptions,
) -> None:
    """Write the results of runs and of TensorRT-LLM's test logs as CSV, one row per task.

    Below a folder, every finished run counts, and every .log, .txt and .out file outside of runs.
    With -o, standard output gets what was found and left out; with --json, all rows too.

    Exit codes: 0 written, 2 usage, 5 nothing was found.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.whole_file import write_named_file
    from serve_eval.workflows.collect.collect import collect
    from serve_eval.workflows.collect.document import describe_rows, make_document, write_csv

    output = asked.output
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    warnings: list[str] = []
    rows = list(collect(paths, warnings.append))
    if output is not None:
        try:
            write_named_file(output, write_csv(rows).encode(errors="backslashreplace"))
        except OSError as error:
            raise PlanError(f"{output}: cannot be written: {error.strerror}") from error
    document = make_document(rows, warnings, paths, output)
    shown = output is not None or faces.as_json
    if not shown:
        emit(write_csv(rows))
        say(*warnings, *(one.cause for one in document.conclusions))
    figures = pretty_json(describe_rows(rows)) if faces.as_json else b""
    if code := end(document, faces, figures=figures, printed=shown):
        raise typer.Exit(code)
