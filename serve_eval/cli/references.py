"""Run `serve-eval references`: show, check, register and import reference files.

`references power` computes detectable drops by sample size, and the reverse.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions, PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._references_take import OWN
from serve_eval.cli._run_folder import IncludePath, folders_of
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plugins.setting import Setting
from serve_eval.shell_words import quote_path
from serve_eval.workflows.power.question import PowerQuestion

if TYPE_CHECKING:
    from serve_eval.report.document import Document
    from serve_eval.workflows.references.import_published import ImportReport


@freeze
class ImportedDataOptions:
    """Choose where the data is with whose prompts those of imported results are compared."""

    title: ClassVar[str] = "Tasks and samples"
    dataset_root: shared_options.DatasetRoot = None

    def list_roots(self) -> tuple[str, ...]:
        """Return the folders with data sets."""
        from serve_eval.plan.resolve import list_roots

        return list_roots(self.dataset_root, os.environ)


@freeze
class CheckoutOptions:
    """Say more about a checkout of TensorRT-LLM."""

    title: ClassVar[str] = "References of TensorRT-LLM"
    command: ClassVar[str] = "import"
    commit: Annotated[
        str | None,
        Setting("Commit of the checkout, to write into the files.", metavar="COMMIT", flag=False),
    ] = None
    snapshot: Annotated[
        bool,
        Setting("The folder is the copy from which the shipped references were made.", flag=False),
    ] = False
    settings: Annotated[
        list[str] | None,
        Setting(
            "Set import.commit, the commit of TensorRT-LLM's checkout.",
            flags=("--set",),
            metavar="import.OPTION=VALUE",
        ),
    ] = None


_ReferencesDir = Annotated[
    Path | None,
    typer.Option(help="Folder of your own references, searched before the shipped ones."),
]


Reason = Annotated[
    str | None, typer.Option(help="Reason for replacing an entry; stored with the old one.")
]


@command()
def list_files(faces: PageFaceOptions, references_dir: _ReferencesDir = None) -> None:
    """List the reference files with their numbers of models and entries."""
    from serve_eval.workflows.references.document import make_list_document
    from serve_eval.workflows.references.shown import list_shown_files

    found = list_shown_files(references_dir)
    _end(make_list_document(found, _name_folder(references_dir)), faces, {"files": found})


@command()
def show(
    reference: Annotated[
        str, typer.Argument(metavar="TASK", help="Name of a reference file, such as gsm8k.")
    ],
    faces: PageFaceOptions,
    model: Annotated[str | None, typer.Option(help="Only the entries of this model.")] = None,
    references_dir: _ReferencesDir = None,
) -> None:
    """Show the entries of a reference file, in the order in which they are tried."""
    from serve_eval.workflows.references.document import make_entries_document
    from serve_eval.workflows.references.shown import list_entries

    found = list_entries(reference, model, references_dir)
    document = make_entries_document(reference, found, _name_folder(references_dir))
    _end(document, faces, {"entries": found})


@command()
def check(
    faces: PageFaceOptions,
    path: Annotated[
        Path | None, typer.Argument(help="A file or a folder (default: the shipped files).")
    ] = None,
) -> None:
    """Check reference files and list every problem.

    Exit codes: 0 no problem, 2 problems.
    """
    from serve_eval.verdicts import references
    from serve_eval.workflows.references.document import make_check_document
    from serve_eval.workflows.references.shown import check_files

    path = path or references.find_shipped_dir()
    found = check_files(path)
    _end(make_check_document(path, found), faces, {"files": found})


@command()
def register(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Finished run folders, three or more for a quiet reference."
        ),
    ],
    faces: FaceOptions,
    references_dir: Annotated[Path, typer.Option(help="Folder for the entry; created if missing.")],
    hardware: Annotated[
        str | None, typer.Option(help='Hardware of the endpoint, such as "8x H200".')
    ] = None,
    reason: Reason = None,
    include_path: IncludePath = None,
) -> None:
    """Register the mean of finished runs as the reference of their model.

    The score of every sample is stored with it.
    """
    from serve_eval.plan.command_line import write_run_command
    from serve_eval.storage.run_folder import read_plan
    from serve_eval.workflows.references import register as register_runs
    from serve_eval.workflows.references.document import make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    written = register_runs(
        runs,
        references_dir,
        hardware=hardware,
        reason=reason,
        include_path=folders_of(include_path),
    )
    document = make_document(
        written,
        references_dir,
        command="serve-eval references register",
        use=write_run_command(read_plan(runs[0]), str(references_dir)),
    )
    _end(document, faces, {"registered": written}, about=references_dir)


@command()
def import_files(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file of results, a folder with some, or the references folder of a checkout of"
            " TensorRT-LLM.",
        ),
    ],
    faces: FaceOptions,
    data: ImportedDataOptions,
    checkout: CheckoutOptions,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="DIR",
            help="Folder to write to (default my-references; references for TensorRT-LLM's).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model of the reference, if the file names none or another."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK",
            help="Task here of the results, as TASK or THEIRS=TASK. Repeatable.",
        ),
    ] = None,
    reason: Reason = None,
) -> None:
    """Import results of lm-eval, inspect, NeMo Evaluator, sgl-eval, srt-slurm or evalscope.

    Also the reference files of TensorRT-LLM. The format is recognised by the content. It says which
    parts of the protocol are unknown, and what was lost; with --verbose, it lists all oddities.
    """
    from serve_eval.errors import PlanError
    from serve_eval.workflows.references.document import make_import_document
    from serve_eval.workflows.references.imports.recognise import is_results

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if checkout.settings:
        raise PlanError(f"--set {checkout.settings[0]}: it sets import.commit or import.snapshot")
    if not checkout.snapshot and is_results(source):
        _import_results(source, to or Path(OWN), data, model, task, reason, faces)
    to = to or Path("references")
    report = _import_trtllm(source, to, commit=checkout.commit, snapshot=checkout.snapshot)
    _end(make_import_document(report, source, to), faces, {"imported": report}, about=to)


def _import_results(
    source: Path,
    to: Path,
    data: ImportedDataOptions,
    model: str | None,
    task: list[str] | None,
    reason: str | None,
    faces: FaceOptions,
) -> None:
    """Import results of a tool that evaluates, show them, and exit."""
    from serve_eval.workflows.references.imports import import_results, make_document
    from serve_eval.workflows.references.imports.task_match import read_given

    found = import_results(
        source,
        to,
        tasks=read_given(task or ()),
        model=model,
        dataset_roots=data.list_roots(),
        reason=reason,
    )
    _end(make_document(found, source, to), faces, {"imported": found}, about=to)


def _import_trtllm(source: Path, to: Path, *, commit: str | None, snapshot: bool) -> ImportReport:
    """Import the references folder of a checkout of TensorRT-LLM."""
    import datetime

    from serve_eval.workflows.references import import_published

    read_on = (
        import_published.TRTLLM_READ_ON
        if snapshot
        else datetime.datetime.now(datetime.UTC).date().isoformat()
    )
    commits: Mapping[str, str] = import_published.TRTLLM_COMMITS if snapshot else {}
    if commit is not None:
        commits = {file.stem: commit for file in source.glob("*.yaml")}
    return import_published.import_directory(
        source,
        to,
        commits=commits,
        read_on=read_on,
        read_later=import_published.TRTLLM_READ_LATER if snapshot else None,
    )


def _end(
    document: Document,
    faces: FaceOptions,
    found: Mapping[str, object],
    *,
    about: Path | None = None,
) -> None:
    """Show a document on all its faces, with what was found as the result of --json, and exit."""
    from serve_eval.cli._ending import end
    from serve_eval.workflows.references.document import write_figures

    raise typer.Exit(end(document, faces, about=about, figures=write_figures(found)))


def _name_folder(own: Path | None) -> str:
    """Return the flag that names a folder of the user's own references, after a space."""
    return "" if own is None else f" --references-dir {quote_path(own)}"


@freeze
class PowerOptions(PowerQuestion):
    """Choose the question, also by --set."""

    settings: Annotated[
        list[str] | None,
        Setting(
            "Set power.sigma, alpha, beta, tests or design_effect: power.alpha=0.01. Repeatable.",
            flags=("--set",),
            metavar="power.OPTION=VALUE",
        ),
    ] = None


@command()
def references_power(faces: PageFaceOptions, asked: PowerOptions) -> None:
    """Compute the drop that n samples can detect, or the samples that a drop takes.

    Give at least one of --total, --theta, --detect and --from.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.errors import PlanError
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.power.answers import answer
    from serve_eval.workflows.power.document import make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if asked.settings:
        raise PlanError(f"--set {asked.settings[0]}: it sets power.OPTION, as in power.alpha=0.01")
    found = answer(asked)
    figures = pretty_json({"schema_version": 1, "tasks": found})
    raise typer.Exit(end(make_document(found, asked), faces, about=asked.from_run, figures=figures))
