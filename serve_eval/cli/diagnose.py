"""`serve-eval diagnose`: why is a run red or undecided, and what is to be changed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of


def diagnose(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, a comparison or a suite.")
    ],
    include_path: IncludePath = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say why a run is red or undecided, by what its folder holds, with the option to change.
    Nothing is asked.

    Exit codes: 0 whatever is found, since a diagnosis is no verdict; 2 for a folder that cannot be
    read.
    """
    from serve_eval.cli._streams import emit
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.report.text import clean
    from serve_eval.workflows.diagnose.story import diagnose as diagnosed
    from serve_eval.workflows.diagnose.text import lines

    diagnosis = diagnosed(run, include_path=folders_of(include_path))
    if as_json:
        emit(pretty_json(diagnosis).decode())
    else:
        emit("".join(f"{clean(line)}\n" for line in lines(diagnosis)))
