"""Run `serve-eval rescore`: score the answers of a run again and show the changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import LATEST, name_run


@command()
def rescore(
    faces: FaceOptions,
    run: Annotated[Path, name_run("A run folder, finished or not (default latest).")] = LATEST,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a scoring option: gsm8k.filter=strict-match. Repeatable.",
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="New run folder for the same answers with the new scores."
        ),
    ] = None,
    references_dir: Annotated[
        Path | None,
        typer.Option(
            "--references-dir", metavar="DIR", help="References that judge the new run folder."
        ),
    ] = None,
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution", help="Allow programs that the run itself did not run."
        ),
    ] = False,
    include_path: IncludePath = None,
) -> None:
    """Score the answers in a run folder again and show what changed.

    Nothing is sent, and the folder stays as it is.

    Exit codes: 0 even if something changed, 2 usage, folder or data, 5 no answer to score.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.plugins.withheld import name_folders
    from serve_eval.verdicts.exit_code import NOTHING_SCORED, PASS
    from serve_eval.workflows.rescore.document import make_document
    from serve_eval.workflows.rescore.rescore import rescore as again

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if references_dir is not None and output_dir is None:
        raise PlanError(
            "--references-dir: only a new run folder is judged",
            hint="Give -o NEW too, or use serve-eval verdict RUN --references-dir DIR.",
        )
    folders = folders_of(include_path)
    found = again(
        run,
        settings or (),
        to=output_dir,
        allow_code_execution=allow_code_execution,
        include_path=folders,
        references_dir=references_dir,
    )
    allowed = " --allow-code-execution" * allow_code_execution
    document = make_document(
        found,
        run,
        exit_code=PASS if any(one.answered for one in found) else NOTHING_SCORED,
        to=output_dir,
        flags=f"{allowed}{name_folders(folders)}",
        again=_write_again(run, settings or ()),
    )
    figures = pretty_json({"schema_version": 1, "run": str(run), "tasks": found})
    raise typer.Exit(end(document, faces, about=output_dir or run, figures=figures))


def _write_again(run: Path, settings: Sequence[str]) -> str:
    """Return the command that writes these scores into a new folder next to the run."""
    from serve_eval.shell_words import join_words, quote_path

    folder = run.resolve() if run.name in ("", "..") else run
    names = (folder.name, *(f"{folder.name}_{number}" for number in range(2, 100)))
    new = next(
        (one for name in names if not (one := folder.with_name(f"{name}_rescored")).exists()), run
    )
    given = "".join(f" {join_words(['--set', one])}" for one in settings)
    return f"serve-eval rescore {quote_path(run)}{given} -o {quote_path(new)}"
