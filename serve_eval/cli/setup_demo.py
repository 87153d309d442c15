"""Run `serve-eval setup demo`: judge a real model, without a GPU and without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def setup_demo(
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="Folder for the runs (default outputs/<time>_demo)."
        ),
    ] = None,
) -> None:
    """Judge the embedded model, intact and damaged.

    The model passes intact and in 8 bits, and fails in 3 bits. In 4 bits, only a comparison of
    pairs shows the damage.
    """
    from serve_eval.cli._streams import draw, emit
    from serve_eval.cli.run import execute
    from serve_eval.errors import RunFolderError
    from serve_eval.report.summary.headline import print_table_of_runs
    from serve_eval.storage.command_folder import claim_default_folder
    from serve_eval.storage.file_names import PAGE_FILE
    from serve_eval.storage.report_file import read_report
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.demo import acts

    folder = output_dir or claim_default_folder("demo")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(
            f"{folder} exists and is not an empty folder", hint="Choose another with -o."
        )
    as_expected, pages, reports = True, [], {}
    for act in acts():
        emit(f"\n{act.title}\n\n")
        code = execute(act.plan, folder / act.name)
        if code == INTERRUPTED:
            raise typer.Exit(code)
        as_expected = as_expected and code == act.expected
        pages.append(folder / act.name / PAGE_FILE)
        reports[act.name] = read_report(folder / act.name)
    emit("\nThe five runs:\n\n")
    draw(lambda console: print_table_of_runs(reports, console))
    emit("\nThe reports as pages:\n" + "".join(f"  {page}\n" for page in pages))
    emit("Next: serve-eval run --base-url http://HOST:8000 --model NAME --tasks gsm8k\n")
    raise typer.Exit(0 if as_expected else 1)
