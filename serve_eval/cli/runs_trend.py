"""Run `serve-eval runs trend`: find a slow decline over the runs of many days."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.series.history import History, Series

OUTPUTS = Path("outputs")
EXAMPLES = (
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


@command(examples=EXAMPLES)
def runs_trend(
    asked: SeriesOptions,
    faces: PageFaceOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that holds the run folders, at any depth.")
    ] = OUTPUTS,
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
