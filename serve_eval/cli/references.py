"""Run `serve-eval references`: show, check, register and import reference files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._references_take import take

app = typer.Typer(
    help="Show, check, register and import the values that runs are compared with.",
    no_args_is_help=True,
)

_ReferencesDir = Annotated[
    Path | None,
    typer.Option(help="Folder of your own references, searched before the shipped ones."),
]


@app.command("list")
def list_files(references_dir: _ReferencesDir = None) -> None:
    """List the reference files with their numbers of models and entries."""
    from serve_eval.verdicts import references

    folder = None
    for file in references.list_files(_directories(references_dir)):
        if file.parent != folder:
            folder = file.parent
            _say(f"{folder}:")
        if file.stem == references.ACCEPTANCE_LENGTH:
            models = entries = len(references.load_acceptance_length(file))
        else:
            by_model = references.load(file)
            models, entries = len(by_model), sum(map(len, by_model.values()))
        _say(f"  {file.stem:34} {models:4} models {entries:5} entries")


@app.command()
def show(
    task: Annotated[str, typer.Argument(help="Name of a reference file, such as gsm8k.")],
    model: Annotated[str | None, typer.Option(help="Only the entries of this model.")] = None,
    references_dir: _ReferencesDir = None,
) -> None:
    """Show the entries of a reference file, in the order in which they are tried."""
    from serve_eval.cli._references_text import describe_entries, describe_lengths
    from serve_eval.errors import PlanError
    from serve_eval.plugins import registry
    from serve_eval.verdicts import references

    files = references.list_files(_directories(references_dir))
    chosen = [file for file in files if file.stem == task]
    if not chosen:
        known = sorted({file.stem for file in files})
        raise PlanError(f"there is no reference file {task!r}.{registry.nearest(task, known)}")
    acceptance = task == references.ACCEPTANCE_LENGTH
    lines = describe_lengths(chosen) if acceptance else describe_entries(chosen)
    if model is not None and model not in lines:
        raise PlanError(f"{task} has no entry for {model!r}.{registry.nearest(model, lines)}")
    for name in lines if model is None else [model]:
        _say(name)
        for line in lines[name]:
            _say(f"  {line}")


@app.command()
def check(
    path: Annotated[
        Path | None, typer.Argument(help="A file or a folder (default: the shipped files).")
    ] = None,
) -> None:
    """Check reference files and list every problem.

    Exit codes: 0 no problem, 2 problems.
    """
    from serve_eval.cli._references_text import describe_runs
    from serve_eval.errors import ReferenceFileError
    from serve_eval.verdicts import references

    path = path or references.find_shipped_dir()
    problems = references.check(path)
    if problems:
        raise ReferenceFileError(
            "\n".join(problems), hint=f"Problems: {len(problems)}. Correct them and check again."
        )
    for file in references.list_files([path]) if path.is_dir() else [path]:
        for line in describe_runs(file):
            _say(line)
    _say(f"{path}: no problem found")


@app.command()
def register(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Finished run folders; the first --wanted ones are used."
        ),
    ],
    references_dir: Annotated[Path, typer.Option(help="Folder for the entry; created if missing.")],
    wanted: Annotated[int, typer.Option(min=1, help="Runs to use.")] = 3,
    hardware: Annotated[
        str | None, typer.Option(help='Hardware of the endpoint, such as "8x H200".')
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Reason for replacing an entry; stored with the old one.")
    ] = None,
    include_path: IncludePath = None,
) -> None:
    """Register the mean of finished runs as the reference of their model.

    The score of every sample is stored with it.
    """
    from serve_eval.cli._references_text import describe_registered, list_registered_remarks
    from serve_eval.cli._streams import say
    from serve_eval.workflows.references.register import register as register_runs

    written = register_runs(
        runs,
        references_dir,
        wanted=wanted,
        hardware=hardware,
        reason=reason,
        include_path=folders_of(include_path),
    )
    for one in written:
        _say(describe_registered(one))
        say(*list_registered_remarks(one))


app.command("take")(take.function)


@app.command("import")
def import_files(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The references folder of a TensorRT-LLM checkout."),
    ],
    to: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("references"),
    commit: Annotated[
        str | None, typer.Option(help="Commit of that checkout, to write into the files.")
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="DIR is the copy from which the shipped files were made."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List all oddities in the files.")
    ] = False,
) -> None:
    """Import the reference files of TensorRT-LLM.

    It lists the entries that are lost; with --verbose, it lists all oddities.
    """
    import datetime

    from serve_eval.workflows.references import import_trtllm as importer

    read_on = (
        importer.TRTLLM_READ_ON
        if snapshot
        else datetime.datetime.now(datetime.UTC).date().isoformat()
    )
    commits: Mapping[str, str] = importer.TRTLLM_COMMITS if snapshot else {}
    if commit is not None:
        commits = {file.stem: commit for file in source.glob("*.yaml")}
    report = importer.import_directory(
        source,
        to,
        commits=commits,
        read_on=read_on,
        read_later=importer.TRTLLM_READ_LATER if snapshot else None,
    )
    shown = report.oddities if verbose else report.lost
    for oddity in shown:
        _say(oddity)
    old = sum(count.written for file, count in report.counts.items() if file.startswith("older/"))
    entries = sum(count.written for count in report.counts.values())
    files = f"{len(report.new)} new, {len(report.updated)} updated of {len(report.written)} files"
    hidden = len(report.oddities) - len(shown)
    odd = f"; --verbose lists {hidden} oddities" if hidden else ""
    _say(f"imported {entries} entries ({old} of them old) from {source} into {to}: {files}{odd}")


def _directories(own: Path | None) -> list[Path]:
    from serve_eval.verdicts import references

    return [references.find_shipped_dir()] if own is None else [own, references.find_shipped_dir()]


def _say(line: str) -> None:
    from serve_eval.cli._streams import emit
    from serve_eval.report.text import clean

    emit(f"{clean(line)}\n")
