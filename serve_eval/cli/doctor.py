"""Run `serve-eval doctor`: look at this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from serve_eval.cli._options import command

EXAMPLES = (
    ("See what works on this machine:", "serve-eval doctor"),
    ("List what is absent, with the commands that install it:", "serve-eval doctor --json"),
)


@command(examples=EXAMPLES)
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every fix.")
    ] = False,
) -> None:
    """Look at this machine: Python, limits, keys, isolation, GPUs, programs and extras.

    Nothing is sent. Ask an endpoint with serve-eval smoke.

    Exit codes: 0, or 1 if something will stop runs.
    """
    from serve_eval.cli._streams import draw, emit
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.workflows.doctor.findings import examine
    from serve_eval.workflows.doctor.text import render

    findings = list(examine(os.environ))
    if as_json:
        emit(pretty_json({"schema_version": 1, "findings": findings}).decode())
    else:
        draw(lambda console: render(findings, console))
    raise typer.Exit(int(any(one.state == "problem" for one in findings)))
