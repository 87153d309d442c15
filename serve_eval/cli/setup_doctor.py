"""Run `serve-eval setup doctor`: look at this machine."""

from __future__ import annotations

import os

import typer

from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command

EXAMPLES = (
    ("See what works on this machine:", "serve-eval setup doctor"),
    ("List what is absent, with the commands that install it:", "serve-eval setup doctor -v"),
)


@command(examples=EXAMPLES)
def setup_doctor(faces: PageFaceOptions) -> None:
    """Look at this machine: Python, limits, keys, isolation, GPUs, programs and extras.

    Nothing is sent. Ask an endpoint with serve-eval smoke.

    Exit codes: 0, or 1 if something will stop runs.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.doctor import examine, make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    findings = list(examine(os.environ))
    figures = pretty_json({"schema_version": 1, "findings": findings})
    raise typer.Exit(end(make_document(findings), faces, figures=figures))
