"""Run `serve-eval drift`: find a slow decline over the runs of many days."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.report.plots import Panel
    from serve_eval.series.chart import Chart
    from serve_eval.series.history import History, Series

NOTES_SHOWN = 20
MOST_DRAWN = 4
"""Most series in one picture."""
MOST_DOTS = 100
"""Most runs that are drawn as separate dots."""
DATES_SHOWN = 6
"""Dates below the axis of a picture."""


def drift(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that holds the run folders, at any depth.")
    ],
    task: Annotated[str | None, typer.Option(help="Only the series of this task.")] = None,
    model: Annotated[str | None, typer.Option(help="Only the series of this model.")] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            "--h",
            help="Alarm limit of the cumulative sum, in standard deviations of a run (default"
            " 8, higher if the standard deviation is estimated).",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw values and sums into this .svg, .png or .pdf file (needs the extra plots)."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the charts as a page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Chart the finished runs below a folder to find a decline too slow for a single verdict.

    An alarm is a warning and never fails the command.

    Exit codes: 0 even on an alarm, 2 usage or no finished run.
    """
    from serve_eval.cli._page import save_plot, save_story_page
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError, RunFolderError
    from serve_eval.report.plots import check_plot
    from serve_eval.series.chart import chart
    from serve_eval.series.history import find_series
    from serve_eval.series.page import make_drift_page

    if plot is not None:
        check_plot(plot)
    if page is not None and not page.absolute().parent.is_dir():
        raise PlanError(f"--page: {page.absolute().parent} is not a folder")
    history = find_series(folder)
    charts, bare = [], []
    for one in _choose(history, task, model):
        try:
            charts.append(chart(one, limit=limit))
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
    emit(_print_json(folder, charts, notes) if as_json else _print(folder, charts, notes))
    if page is not None:
        save_story_page(lambda: make_drift_page(charts, notes, folder), page)
    if plot is not None:
        save_plot(
            lambda: [panel for one in charts for panel in _panels(one)], plot, "values and sums"
        )


def _print_json(folder: Path, charts: Sequence[Chart], notes: Sequence[str]) -> str:
    from serve_eval.evaluation.storage.private_files import pretty_json

    content = {
        "schema_version": 1,
        "dir": str(folder),
        "series": list(map(_json, charts)),
        "notes": notes,
    }
    return pretty_json(content).decode()


def _print(folder: Path, charts: Sequence[Chart], notes: Sequence[str]) -> str:
    from serve_eval.report.text import clean

    lines = [line for one in charts for line in _lines(one, folder)]
    lines += [f"note: {note}" for note in notes[:NOTES_SHOWN]]
    if len(notes) > NOTES_SHOWN:
        lines.append(f"note: and {len(notes) - NOTES_SHOWN} more: --json lists all")
    return "".join(f"{clean(line)}\n" for line in lines)


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


def _lines(one: Chart, folder: Path) -> list[str]:
    from serve_eval.series.chart import date
    from serve_eval.stats.false_alarms import RUNS

    series, nights = one.series, one.series.nights
    lines = [
        f"{series.name}: {_runs(len(nights))} of {series.n} samples",
        (
            f"  x is the {one.measure}; a run's standard deviation is {one.sd:.3f} points,"
            f" {one.noise.source}"
        ),
        (
            f"  beyond h = {one.limit:g} an unchanged endpoint alarms within {RUNS} runs with a"
            f" chance of {one.false_alarm_chance:.2g} if its runs are independent"
            f" ({one.noise.known})"
        ),
        (
            f"  {'began (UTC)':16}  {'value':>9}  {'missing':>7}  {'flips':>6}  {'x':>9}  {'z':>6} "
            f" {'S':>6}         run"
        ),
    ]
    for night, x, flips, point in zip(nights, one.x, one.flips, one.points, strict=True):
        where = night.run.relative_to(folder) if night.run != folder else night.run.name
        lines.append(
            f"  {date(night):16}  {night.value:>9.3f}  {night.missing:>7} "
            f" {'-' if flips is None else flips:>6}  {x:>9.3f}  {point.z:>6.2f}  {point.s:>6.2f} "
            f" {'ALARM' if point.alarm else '':5}  {where}"
        )
    if len(nights) == 1:
        lines.append("  one run only: nothing to compare it with yet")
    return [*lines, *(f"  warning: {warning}" for warning in one.warnings), ""]


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _json(one: Chart) -> dict[str, Any]:
    from serve_eval.stats.drift import SLACK
    from serve_eval.stats.false_alarms import RUNS

    series = one.series
    return {
        "task": series.task,
        "model": series.model,
        "spec": series.spec,
        "simulated": series.simulated,
        "fingerprint": series.fingerprint,
        "higher_is_better": series.metric.higher_is_better,
        "n": series.n,
        "measure": one.measure,
        "variance": one.noise.variance,
        "variance_from": one.noise.source,
        "dispersion": one.noise.dispersion,
        "sd": one.sd,
        "k": SLACK,
        "h": one.limit,
        "false_alarm": {
            "runs": RUNS,
            "chance": one.false_alarm_chance,
            "known_from": one.noise.known,
        },
        "alarm": one.points[-1].alarm,
        "warnings": one.warnings,
        "runs": [
            {
                "run": str(night.run),
                "started_at": night.started_at.isoformat(),
                "value": night.value,
                "missing": night.missing,
                "flips": flips,
                "x": x,
                "z": point.z,
                "s": point.s,
                "alarm": point.alarm,
            }
            for night, x, flips, point in zip(
                series.nights, one.x, one.flips, one.points, strict=True
            )
        ],
    }


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
            title=f"{one.series.name}: {_runs(len(nights))} of {one.series.n} samples",
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
