"""Run `serve-eval runs trend`: find a slow decline over the runs of many days."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.report.plots import Panel
    from serve_eval.series.chart import Chart
    from serve_eval.series.history import History, Series

MOST_DRAWN = 4
"""Most series in one picture."""
MOST_DOTS = 100
"""Most runs that are drawn as separate dots."""
DATES_SHOWN = 6
"""Dates below the axis of a picture."""
OUTPUTS = Path("outputs")
EXAMPLES = (
    ("Chart the runs of a folder:", "serve-eval runs trend"),
    (
        "Draw one task of one model into a file:",
        "serve-eval runs trend outputs/ --task gsm8k --model NAME --plot drift.svg",
    ),
)


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class DrawingOptions:
    """Choose the files that are drawn."""

    title: ClassVar[str] = "Pictures"
    plot: Annotated[
        Path | None,
        Setting(
            "Draw values and sums into this .svg, .png or .pdf file (needs the extra plots).",
            metavar="PATH",
        ),
    ] = None


@command(examples=EXAMPLES)
def runs_trend(
    asked: SeriesOptions,
    drawing: DrawingOptions,
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
    from serve_eval.cli._page import save_plot
    from serve_eval.errors import PlanError, RunFolderError
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.report.plots import check_plot
    from serve_eval.series.chart import chart
    from serve_eval.series.history import find_series
    from serve_eval.workflows.drift.document import describe_charts, make_document

    plot, page = drawing.plot, faces.output
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if plot is not None:
        check_plot(plot)
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
    if plot is not None and len(charts) > MOST_DRAWN:
        raise PlanError(
            f"--plot: {len(charts)} series do not fit, a picture holds {MOST_DRAWN}",
            hint="Choose with --task and --model.",
        )
    document = make_document(charts, notes, folder)
    figures = pretty_json(describe_charts(charts, notes, folder)) if faces.as_json else b""
    code = end(document, faces, about=folder, figures=figures)
    if plot is not None:
        save_plot(
            lambda: [panel for one in charts for panel in _panels(one)], plot, "values and sums"
        )
    if code:
        raise typer.Exit(code)


def _choose(history: History, task: str | None, model: str | None) -> list[Series]:
    """Return the series of that task and model. Raises PlanError if there is none."""
    from serve_eval.errors import PlanError
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


def _panels(one: Chart) -> list[Panel]:
    """Return two panels: the value of each run, and the cumulative sum with its limit."""
    from serve_eval.report.plots import LevelLine, Panel, PlotLine
    from serve_eval.series.chart import date

    nights = one.series.nights
    places = [float(place) for place in range(1, len(nights) + 1)]
    step = max(1, -(-len(nights) // DATES_SHOWN))
    ticks = {places[i]: "\n".join(date(nights[i]).split()) for i in range(0, len(nights), step)}
    values, sums = [night.value for night in nights], [point.s for point in one.points]
    references = sorted({night.reference.value for night in nights if night.reference is not None})
    levels = [LevelLine(label=f"reference {value:.3f}", at=value) for value in references]
    seen = {"marked": one.alarms, "mark_label": "alarm", "dots": len(nights) <= MOST_DOTS}
    return [
        Panel(
            title=f"{one.series.name}: {len(nights)} runs of {one.series.n} samples",
            x_label="began (UTC)",
            y_label=f"{one.series.metric.name} (points)",
            lines=[PlotLine(label="value of the run", x=places, y=values, **seen)],  # type: ignore[arg-type]
            levels=levels,
            ticks=ticks,
        ),
        Panel(
            title=f"{one.series.name}: decline, as a cumulative sum",
            x_label="began (UTC)",
            y_label="S (standard deviations of a run)",
            lines=[PlotLine(label="S", x=places, y=sums, **seen)],  # type: ignore[arg-type]
            levels=[LevelLine(label=f"alarm beyond h = {one.limit:g}", at=one.limit)],
            ticks=ticks,
            y_range=(-0.3, 1.15 * max(one.limit, *sums)),
        ),
    ]
