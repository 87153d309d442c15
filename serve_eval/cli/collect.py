"""Run `serve-eval collect`: write the results of runs and test logs as one CSV table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._options import command

EXAMPLES = (
    ("Write a row for each task of all runs:", "serve-eval collect outputs > results.csv"),
    (
        "Add the results in logs of TensorRT-LLM's accuracy tests:",
        "serve-eval collect outputs test.log -o results.csv",
    ),
)


@command(examples=EXAMPLES)
def collect(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR|LOG...", help="Folders with runs or logs, and logs."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write (default: print)."),
    ] = None,
) -> None:
    """Write the results of runs and of TensorRT-LLM's test logs as CSV, one row per task.

    Below a folder, every finished run counts, and every .log, .txt and .out file outside of runs.

    Exit codes: 0 written, 2 usage, 5 nothing was found.
    """
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.verdicts.exit_code import NOTHING_SCORED
    from serve_eval.whole_file import write_named_file
    from serve_eval.workflows.collect.collect import collect as collect_rows
    from serve_eval.workflows.collect.rows import write_csv

    warned: list[str] = []

    def warn(line: str) -> None:
        warned.append(line)
        say(line)

    rows = list(collect_rows(paths, warn))
    if output is None:
        emit(write_csv(rows))
    else:
        try:
            write_named_file(output, write_csv(rows).encode(errors="backslashreplace"))
        except OSError as error:
            raise PlanError(f"{output}: cannot be written: {error.strerror}") from error
        say(f"{output}: {len(rows)} rows")
    if not rows:
        why = "could be read: see the warnings" if warned else "was found"
        say(f"no finished run and no result in a log {why}")
        raise typer.Exit(NOTHING_SCORED)
