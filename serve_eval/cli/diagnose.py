"""Run `serve-eval diagnose`: explain why a run is red or undecided and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import LATEST, IncludePath, folders_of, name_run


@command()
def diagnose(
    faces: PageFaceOptions,
    run: Annotated[
        Path,
        name_run("Folder of a run, a comparison, a suite or a verification (default latest)."),
    ] = LATEST,
    include_path: IncludePath = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also compare counted prompt tokens with the tokenizer of this folder.",
        ),
    ] = None,
) -> None:
    """Explain why a run is red or undecided, and name the option to change.

    It reads the folder and sends nothing. It writes its page there, as diagnosis.html.

    Exit codes: 0 for any finding, since a diagnosis is not a verdict; 2 for a folder that cannot be
    read.
    """
    from contextlib import ExitStack

    from serve_eval.cli._ending import end
    from serve_eval.evidence.prompt_tokens import open_local
    from serve_eval.storage.file_names import DIAGNOSIS_PAGE
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.diagnose.document import make_document
    from serve_eval.workflows.diagnose.judged import list_outcomes, read_folder
    from serve_eval.workflows.diagnose.story import diagnose_read

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    with ExitStack() as stack:
        local = None if tokenizer is None else stack.enter_context(open_local(tokenizer))
        answers = read_folder(run, folders_of(include_path))
        found, outcomes = diagnose_read(answers, local), list_outcomes(answers)
    document = make_document(found, outcomes, run)
    code = end(document, faces, about=run, figures=pretty_json(found), page=run / DIAGNOSIS_PAGE)
    raise typer.Exit(code)
