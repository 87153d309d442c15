"""Run `serve-eval diagnose`: explain why a run is red or undecided and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._run_folder import LATEST, name_run


def diagnose(
    run: Annotated[
        Path, name_run("Folder of a run, a comparison or a suite (default latest).")
    ] = LATEST,
    include_path: IncludePath = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also compare counted prompt tokens with the tokenizer of this folder.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Explain why a run is red or undecided, and name the option to change.

    It reads the folder and sends nothing.

    Exit codes: 0 for any finding, since a diagnosis is not a verdict; 2 for a folder that cannot be
    read.
    """
    from contextlib import ExitStack

    from serve_eval.cli._streams import draw, emit
    from serve_eval.evaluation.prompt_audit.local import open_local
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.workflows.diagnose.story import diagnose as diagnosed
    from serve_eval.workflows.diagnose.text import render

    with ExitStack() as stack:
        local = None if tokenizer is None else stack.enter_context(open_local(tokenizer))
        diagnosis = diagnosed(run, include_path=folders_of(include_path), local=local)
    if as_json:
        emit(pretty_json(diagnosis).decode())
    else:
        draw(lambda console: render(diagnosis, console))
