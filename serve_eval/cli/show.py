"""Run `serve-eval show`: print samples of a run folder, or write capsules that replay them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from serve_eval.cli._common_options import ScreenOptions
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import (
    LATEST,
    IncludePath,
    find_run,
    find_told,
    folders_of,
    name_run,
)
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

EXAMPLES = (
    (
        "List the samples of the last run, the most important first:",
        "serve-eval show outputs/latest",
    ),
    ("Show one of them with its prompt and answer:", "serve-eval show outputs/RUN test-198"),
    ("Show the answers that are not right:", "serve-eval show outputs/RUN --wrong"),
    ("Show what changed from another run:", "serve-eval show RUN --against OTHER"),
    ("Write a request that curl repeats:", "serve-eval show RUN test-198 --capsule"),
)


@freeze
class SelectionOptions:
    """Choose samples."""

    title: ClassVar[str] = "Samples"
    wrong: Annotated[bool, Setting("Show answers that are not right.")] = False
    failed: Annotated[bool, Setting("Show samples without an answer or without a score.")] = False
    flips: Annotated[
        bool, Setting("Show samples that scored otherwise in the reference's run.")
    ] = False
    grep: Annotated[
        str | None, Setting("Show samples with this text in any of their texts.", metavar="TEXT")
    ] = None
    against: Annotated[
        Path | None, Setting("Show samples that scored otherwise there.", metavar="RUN")
    ] = None
    task: Annotated[str | None, Setting("Show only this task.", metavar="NAME")] = None
    most: Annotated[
        int | None,
        Setting("Samples to show (default all, 3 of them in full).", flags=("--n",), metavar="N"),
    ] = None
    everything: Annotated[
        bool, Setting("Read every sample that was found in full.", flags=("--all",))
    ] = False
    brief: Annotated[bool, Setting("Read none in full: one line per sample.")] = False


@freeze
class CapsuleOptions:
    """Write the requests of the named samples, to ask them again elsewhere."""

    title: ClassVar[str] = "Capsules"
    capsule: Annotated[
        bool,
        Setting("Write a folder for each ID: its request, curl.sh to repeat it, both answers."),
    ] = False
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder of the capsules (default RUN/capsules).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    allow_holdout: Annotated[
        bool, Setting("Allow samples of a hold-out set; their texts are written.")
    ] = False


def _take_word(run: Path, ids: list[str]) -> tuple[Path, list[str]]:
    """Return the folder and the ids; a word that is no folder is an id of the latest run."""
    if run.exists() or len(run.parts) != 1:
        return run, ids
    try:
        return find_told(LATEST), [run.name, *ids]
    except RunFolderError:
        return run, ids


@command(examples=EXAMPLES)
def show(
    chosen: SelectionOptions,
    packed: CapsuleOptions,
    faces: ScreenOptions,
    run: Annotated[Path, name_run("Folder of a run or a comparison (default latest).")] = LATEST,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of samples to show.")
    ] = None,
    include_path: IncludePath = None,
) -> None:
    """Show samples of a run: prompt, answer, expected, score, what was extracted and attempts.

    Without a choice it lists them, the most important first. --wrong and --failed add up; all other
    choices must hold as well. Of a comparison, it shows the samples that A and B score otherwise,
    with both answers. -v shows whole texts. --capsule writes the request of each ID, a script that
    repeats it, and the expected and the received answer; keys are written as variables. It reads
    the folder and sends nothing.

    Exit codes: 0, or 2 for a folder or a sample that is not there.
    """
    from serve_eval.cli._ending import print_result
    from serve_eval.report.text import escape_json
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.show.document import make_document
    from serve_eval.workflows.show.story import Selection
    from serve_eval.workflows.show.story import show as read_shown

    run, ids = _take_word(run, ids or [])
    if packed.capsule:
        write_capsules(
            run,
            ids,
            faces,
            output_dir=packed.output_dir,
            task=chosen.task,
            include_path=folders_of(include_path),
            allow_holdout=packed.allow_holdout,
        )
        return
    if packed.output_dir is not None or packed.allow_holdout:
        raise PlanError("-o and --allow-holdout: only capsules are written", hint="Add --capsule.")
    if chosen.most is not None and chosen.most < 1:
        raise PlanError(f"--n {chosen.most}: expected 1 or more")
    selection = Selection(
        ids=tuple(ids),
        wrong=chosen.wrong,
        failed=chosen.failed,
        flips=chosen.flips,
        grep=chosen.grep,
        task=chosen.task,
        most=chosen.most,
        everything=chosen.everything or (faces.as_json and chosen.most is None),
        brief=chosen.brief,
    )
    folders = folders_of(include_path)
    found = read_shown(run, selection, against=find_run(chosen.against), include_path=folders)
    figures = escape_json(pretty_json(found).decode()).encode() if faces.as_json else b""
    print_result(make_document(found, folders), faces, figures)


def write_capsules(
    run: Path,
    ids: Sequence[str],
    faces: ScreenOptions,
    *,
    output_dir: Path | None,
    task: str | None,
    include_path: Sequence[str],
    allow_holdout: bool,
) -> None:
    """Write a capsule of each sample, and print where they are.

    Raises PlanError without an id, and errors of a folder or data that cannot be used.
    """
    from serve_eval.cli._ending import print_result
    from serve_eval.storage.file_names import CAPSULES
    from serve_eval.workflows.capsule import capsules, make_document

    if not ids:
        raise PlanError(
            "--capsule: name a sample, as in serve-eval show RUN ID --capsule",
            hint="serve-eval show RUN lists the ids of its samples.",
        )
    folders = capsules(
        run,
        ids,
        output_dir or run / CAPSULES,
        task=task,
        include_path=include_path,
        allow_holdout=allow_holdout,
    )
    print_result(make_document(run, folders), faces)
