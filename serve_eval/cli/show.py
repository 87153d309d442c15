"""Run `serve-eval show`: print samples of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import LATEST, find_run, name_run

EXAMPLES = (
    (
        "List the samples of the last run, the most important first:",
        "serve-eval show outputs/latest",
    ),
    ("Show one of them with its prompt and answer:", "serve-eval show outputs/RUN test-198"),
    ("Show the answers that are not right:", "serve-eval show outputs/RUN --wrong"),
    ("Show what changed from another run:", "serve-eval show RUN --against OTHER"),
)


@command(examples=EXAMPLES)
def show(
    run: Annotated[Path, name_run("Folder of a run or a comparison (default latest).")] = LATEST,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of samples to show.")
    ] = None,
    wrong: Annotated[
        bool, typer.Option("--wrong", help="Show answers that are not right.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Show samples without an answer or without a score.")
    ] = False,
    flips: Annotated[
        bool,
        typer.Option("--flips", help="Show samples that scored otherwise in the reference's run."),
    ] = False,
    grep: Annotated[
        str | None,
        typer.Option("--grep", help="Show samples with this text in any of their texts."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Show samples that scored otherwise there.",
            callback=find_run,
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Show only this task.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--n",
            metavar="N",
            min=1,
            help="Samples to show (default 20 lines, else 3; all as JSON).",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every sample that was found.")] = (
        False
    ),
    brief: Annotated[bool, typer.Option("--brief", help="Print one line per sample.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Print long texts as a whole.")] = False,
    include_path: IncludePath = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show samples of a run: prompt, expected, answer, what was extracted, score and attempts.

    Without a choice it lists them, the most important first. --wrong and --failed add up; all other
    choices must hold as well. Of a comparison, it shows the samples that A and B score otherwise,
    with both answers. It reads the folder and sends nothing.

    Exit codes: 0, or 2 for a folder or a sample that is not there.
    """
    from serve_eval.cli._streams import draw, emit
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.report.text import escape_json
    from serve_eval.workflows.show.story import Selection
    from serve_eval.workflows.show.story import show as shown
    from serve_eval.workflows.show.text import render

    selection = Selection(
        ids=tuple(ids or ()),
        wrong=wrong,
        failed=failed,
        flips=flips,
        grep=grep,
        task=task,
        most=most,
        everything=everything or (as_json and most is None),
        brief=brief,
    )
    found = shown(run, selection, against=against, include_path=folders_of(include_path))
    if as_json:
        emit(escape_json(pretty_json(found).decode()))
    else:
        draw(lambda console: render(found, console, whole=whole))
