"""Run `serve-eval runs view`, `trend`, `table` and `merge`: show, chart, tabulate, join runs.

They say what fails, by how much and since when, find a slow decline over many days, and write the
results of runs and test logs as one CSV table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote

import typer

from serve_eval.cli._common_options import FaceOptions, PageFaceOptions, Strict
from serve_eval.cli._options import command, settings_of
from serve_eval.cli._run_folder import folders_of
from serve_eval.cli._sides import inherit_variables
from serve_eval.cli._streams import emit, say
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.frozen import freeze
from serve_eval.plan.shared_options import (
    AllowCodeExecution,
    DatasetRoot,
    IncludePath,
    ReferencesDir,
)
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from serve_eval.series.history import History, Series


FolderOfRuns = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder that holds the run folders, at any depth.")
]
VIEW_EXAMPLES = (
    ("Look at all runs, with trends:", "serve-eval runs view"),
    (
        "Keep the map, the table and the trends in one file:",
        "serve-eval runs view outputs -o runs.html",
    ),
    ("Only print how each series ended, as JSON:", "serve-eval runs view outputs --json"),
)


@freeze
class ViewOptions:
    """Choose where the pages are served, or the file that is written."""

    title: ClassVar[str] = "Page"
    port: Annotated[int, Setting("Port (default: a free one).", metavar="N")] = 0
    output: Annotated[
        Path | None,
        Setting(
            "Write the index as one file instead of serving it.",
            flags=("--output", "-o"),
            metavar="FILE",
        ),
    ] = None


@command(examples=VIEW_EXAMPLES)
def runs_view(
    asked: ViewOptions,
    faces: FaceOptions,
    folder: FolderOfRuns = Path("outputs"),
) -> None:
    """Show the finished runs below a folder: what fails since when, trends, any two side by side.

    The pages are served to this machine only, read-only, until Ctrl-C; not with -o or --json.
    Nothing is judged again.

    Exit codes: 0 whatever the verdicts, also after Ctrl-C; 2 usage or no finished run.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.errors import PlanError
    from serve_eval.report.page.writer import save_page
    from serve_eval.workflows.view.document import make_document, make_index, write_series
    from serve_eval.workflows.view.overview import read_folder

    if not 0 <= asked.port <= 65535:
        raise PlanError("--port must be from 0 to 65535")
    file = asked.output
    if file is not None and not file.absolute().parent.is_dir():
        raise PlanError(f"-o: {file.absolute().parent} is not a folder")
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    found = read_folder(folder)
    if file is None:
        document = make_document(found, served=True)
    else:
        place = os.path.relpath(folder.resolve(), file.absolute().parent.resolve())
        document = make_document(found, at="" if place == "." else f"{quote(place)}/")

    def show() -> None:
        figures = write_series(found) if faces.as_json else b""
        if code := end(document, faces, about=folder, figures=figures):
            raise typer.Exit(code)

    if file is None and not faces.as_json:
        _serve(show, folder, asked.port)
        return
    show()
    if file is not None:
        save_page(make_index(document, folder), file, say)
        say(f"page: {file}")


def _serve(show: Callable[[], None], folder: Path, port: int) -> None:
    """Show the document, then serve until the user or a scheduler ends the process."""
    import asyncio

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.report.page.writer import render_page
    from serve_eval.workflows.view import serve_folder

    with serve_folder(folder, render_page, port=port) as server:
        show()
        emit(f"{server.url}\n")
        say("Press Ctrl-C to stop.")
        try:
            run_async(asyncio.Event().wait())
        except Interrupted:
            say("Stopped.")


OUTPUTS = Path("outputs")
TREND_EXAMPLES = (
    ("Chart the runs of a folder:", "serve-eval runs trend"),
    (
        "Chart one task of one model on a page:",
        "serve-eval runs trend outputs/ --task gsm8k --model NAME -o drift.html",
    ),
)


@freeze
class SeriesOptions:
    """Choose the series, and the limit of their charts."""

    title: ClassVar[str] = "Series"
    task: Annotated[str | None, Setting("Only the series of this task.")] = None
    model: Annotated[str | None, Setting("Only the series of this model.")] = None
    limit: Annotated[
        float | None,
        Setting(
            "Alarm limit of the cumulative sum, in standard deviations of a run (default 8, higher"
            " if the standard deviation is estimated).",
            flags=("--h",),
        ),
    ] = None


@command(examples=TREND_EXAMPLES)
def runs_trend(
    asked: SeriesOptions,
    faces: PageFaceOptions,
    folder: FolderOfRuns = OUTPUTS,
) -> None:
    """Chart the finished runs below a folder to find a decline too slow for a single verdict.

    An alarm is a warning and never fails the command.

    Exit codes: 0 even on an alarm, 2 usage or no finished run.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.series.chart import chart
    from serve_eval.series.history import find_series
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.drift import describe_charts, make_document

    page = faces.output
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if page is not None and not page.absolute().parent.is_dir():
        raise PlanError(f"-o: {page.absolute().parent} is not a folder")
    history = find_series(folder)
    charts, bare = [], []
    for one in _choose(history, asked.task, asked.model):
        try:
            charts.append(chart(one, limit=asked.limit))
        except RunFolderError as error:
            bare.append(error)
    if not charts:
        raise bare[0]
    notes = [*history.notes, *(f"left out: {error}" for error in bare)]
    document = make_document(charts, notes, folder)
    figures = pretty_json(describe_charts(charts, notes, folder)) if faces.as_json else b""
    code = end(document, faces, about=folder, figures=figures)
    if code:
        raise typer.Exit(code)


def _choose(history: History, task: str | None, model: str | None) -> list[Series]:
    """Return the series of that task and model. Raises PlanError if there is none."""
    from serve_eval.plugins.registry import nearest

    chosen = list(history.series)
    for flag, name, field in (("--task", task, "task"), ("--model", model, "model")):
        if name is not None:
            known = sorted({getattr(one, field) for one in chosen})
            chosen = [one for one in chosen if getattr(one, field) == name]
            if not chosen:
                raise PlanError(
                    f"{flag} {name}: no finished run has this {field}.{nearest(name, known)}"
                )
    if not chosen:
        raise PlanError("no run can be charted", hint="\n".join(history.notes))
    return chosen


TABLE_EXAMPLES = (
    ("Write a row for each task of all runs:", "serve-eval runs table outputs > results.csv"),
    (
        "Add the results in logs of TensorRT-LLM's accuracy tests:",
        "serve-eval runs table outputs test.log -o results.csv",
    ),
)


@freeze
class TableOptions:
    """Choose the file of the table."""

    title: ClassVar[str] = "Table"
    output: Annotated[
        Path | None,
        Setting("File to write (default: print).", flags=("--output", "-o"), metavar="FILE"),
    ] = None


@command(examples=TABLE_EXAMPLES)
def runs_table(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR|LOG...", help="Folders with runs or logs, and logs."),
    ],
    asked: TableOptions,
    faces: FaceOptions,
) -> None:
    """Write the results of runs and of TensorRT-LLM's test logs as CSV, one row per task.

    Below a folder, every finished run counts, and every .log, .txt and .out file outside of runs.
    With -o, standard output gets what was found and left out; with --json, all rows too.

    Exit codes: 0 written, 2 usage, 5 nothing was found.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.whole_file import write_named_file
    from serve_eval.workflows.collect import collect
    from serve_eval.workflows.collect.document import describe_rows, make_document, write_csv

    output = asked.output
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    warnings: list[str] = []
    rows = list(collect(paths, warnings.append))
    if output is not None:
        try:
            write_named_file(output, write_csv(rows).encode(errors="backslashreplace"))
        except OSError as error:
            raise PlanError(f"{output}: cannot be written: {error.strerror}") from error
    document = make_document(rows, warnings, paths, output)
    shown = output is not None or faces.as_json
    if not shown:
        emit(write_csv(rows))
        say(*warnings, *(one.cause for one in document.conclusions))
    figures = pretty_json(describe_rows(rows)) if faces.as_json else b""
    if code := end(document, faces, figures=figures, printed=shown):
        raise typer.Exit(code)


MERGE_EXAMPLES = (
    (
        "Join what serve-eval run PLAN.yaml --shard K/4 -o shards/K asked:",
        "serve-eval runs merge shards/1 shards/2 shards/3 shards/4",
    ),
    (
        "Join them where the data is in another folder:",
        "serve-eval runs merge shards/1 shards/2 --dataset-root DIR -o whole",
    ),
    ("Print the report of the whole as JSON:", "serve-eval runs merge shards/1 shards/2 --json"),
)


@freeze
class HereOptions:
    """Say where data and references are, if they were elsewhere for the shards."""

    title: ClassVar[str] = "Data and references"
    dataset_root: DatasetRoot = None
    references_dir: ReferencesDir = None
    allow_code_execution: AllowCodeExecution = None


@freeze
class MergedOptions:
    """Choose the code to load and the output."""

    title: ClassVar[str] = "Code and output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "New run folder for the whole (default outputs/<time>_<model>).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    include_path: IncludePath = None
    strict: Strict = False


@command(examples=MERGE_EXAMPLES)
def runs_merge(
    shards: Annotated[
        list[Path],
        typer.Argument(metavar="SHARD...", help="The run folders of all shards, in any order."),
    ],
    here: HereOptions,
    output: MergedOptions,
    faces: FaceOptions,
) -> None:
    """Join the shards of a run in a new run folder, and judge them as one run.

    Every sample must be there once. Shards that are missing, given twice, or of other data or
    another protocol are refused, with what differs. The result is that of one run over all samples.

    Exit codes: the same as for `serve-eval run`.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import RedResult, end, fail_undecided
    from serve_eval.cli._run_plan import new_folder
    from serve_eval.cli._streams import say
    from serve_eval.evaluation.trust import adopt_code
    from serve_eval.plan.plan_file import to_file
    from serve_eval.plan.resolve import resolve
    from serve_eval.report.run.document import make_run_document
    from serve_eval.workflows.merge import merge, plan_of_whole, read_shards

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    found = read_shards(shards)
    plan = adopt_code(plan_of_whole(found), folders_of(output.include_path))
    plan = resolve(to_file(plan), settings_of(here), inherit_variables()).plan
    out_dir = output.output_dir or new_folder(plan)
    say(f"serve-eval: {len(found)} shards, run folder {out_dir}")
    report = merge(found, plan, out_dir, strict=output.strict)
    red = RedResult(out_dir, report.exit_code, report.plan.include_path)
    document = make_run_document(report, out_dir, red.leads.causes, red.leads.places)
    code = end(document, faces, folder=out_dir)
    raise typer.Exit(fail_undecided(report, code, strict=output.strict))
