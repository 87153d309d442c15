"""Draw the trend of each series of runs, and the verdicts of the last runs as a map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from serve_eval.errors import ServeEvalError
from serve_eval.report.pictures import (
    HeatRow,
    Picture,
    TrendBand,
    TrendPoint,
    draw_heat,
    draw_trend,
)
from serve_eval.report.pictures.heat import MOST_RUNS
from serve_eval.report.summary.figures import in_points
from serve_eval.schema import TaskReport
from serve_eval.series.chart import chart
from serve_eval.series.history import Series
from serve_eval.series.keys import find_apart, key_of, stands_alone
from serve_eval.series.read_runs import FinishedRun
from serve_eval.workflows.view.overview import name_series

MOST_DRAWN = 20
"""Series with a picture. Of more, those with the most runs are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSeries:
    """A series with its picture (None: it cannot be drawn), and the warnings of its chart.

    `alarm`: the last run alarms.
    """

    name: str
    picture: Picture | None
    warnings: tuple[str, ...]
    alarm: bool


def draw_series(series: Sequence[Series], runs: Sequence[FinishedRun]) -> list[DrawnSeries]:
    """Return the trends of the series, those with the most runs first."""
    tasks = {(run.folder, task.result.task): task for run in runs for task in run.report.tasks}
    ordered = sorted(series, key=lambda one: (-len(one.nights), one.name))
    return [
        _draw(one, [tasks[night.run, one.task] for night in one.nights], drawn=i < MOST_DRAWN)
        for i, one in enumerate(ordered)
    ]


def _draw(series: Series, tasks: Sequence[TaskReport], *, drawn: bool) -> DrawnSeries:
    try:
        charted = chart(series)
    except ServeEvalError as error:
        alarms: set[int] = set()
        warnings: tuple[str, ...] = (f"no drift chart: {error}",)
        last = False
    else:
        alarms, warnings = set(charted.alarms), charted.warnings
        last = charted.points[-1].alarm
    points = [
        TrendPoint(
            at=night.started_at,
            value=night.value,
            interval=task.result.interval,
            verdict=task.verdict.outcome.value,
            alarm=i in alarms,
        )
        for i, (night, task) in enumerate(zip(series.nights, tasks, strict=True))
    ]
    unit = "points" if in_points(series.metric) else series.metric.name
    picture = draw_trend(series.name, points, unit, _band(tasks[-1])) if drawn else None
    return DrawnSeries(name=series.name, picture=picture, warnings=warnings, alarm=last)


def _band(task: TaskReport) -> TrendBand | None:
    """Return the reference of the latest run."""
    reference, verdict = task.verdict.reference, task.verdict
    return None if reference is None else TrendBand(reference=reference, threshold=verdict.limit)


def list_heat_rows(runs: Iterable[FinishedRun]) -> Iterator[HeatRow]:
    """Yield a row for each series, with verdicts from old to new. Parts of results have none."""
    rows: dict[str, list[str]] = defaultdict(list)
    runs = list(runs)
    apart, names = find_apart(runs), name_series(runs)
    for run in sorted(runs, key=lambda one: (one.began, str(one.folder))):
        for task in run.report.tasks if stands_alone(run) else ():
            rows[names[key_of(run, task, apart)]].append(run.find_outcome(task).value)
    for name, verdicts in sorted(rows.items()):
        yield HeatRow(name=name, verdicts=verdicts)


def draw_verdicts(runs: Sequence[FinishedRun]) -> Picture | None:
    """Return the map of the last verdicts."""
    return draw_heat(f"The last {MOST_RUNS} runs of each series", list(list_heat_rows(runs)))
