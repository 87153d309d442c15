"""Draw the trend of a series of runs: its values, and its decline as a cumulative sum."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.errors import ServeEvalError
from serve_eval.report.pictures import Picture, TrendBand, TrendPoint, draw_trend
from serve_eval.report.summary.figures import in_points
from serve_eval.series.chart import Chart, chart
from serve_eval.series.history import Series

ALARM = "ALARM: "
"""Begins the warning of a chart whose last run alarms."""


def find_alarm(charted: Chart) -> str:
    """Return the words of a chart whose last run alarms: the decline and its begin; else ""."""
    if not charted.points[-1].alarm:
        return ""
    return next(one.removeprefix(ALARM) for one in charted.warnings if one.startswith(ALARM))


def list_warnings(charted: Chart) -> list[str]:
    """Return the warnings of a chart but its alarm."""
    return [one for one in charted.warnings if not one.startswith(ALARM)]


def try_chart(series: Series) -> tuple[Chart | None, Sequence[str]]:
    """Return the chart of a series and its warnings but the alarm, or why there is none."""
    try:
        charted = chart(series)
    except ServeEvalError as error:
        return None, [f"no drift chart: {error}"]
    return charted, list_warnings(charted)


def draw_values(series: Series, charted: Chart | None, title: str) -> Picture | None:
    """Return the values of a series with their alarms, and the reference of the latest run."""
    alarms = set() if charted is None else set(charted.alarms)
    points = [
        TrendPoint(
            at=night.started_at,
            value=night.value,
            interval=night.interval,
            verdict=night.outcome,
            alarm=i in alarms,
        )
        for i, night in enumerate(series.nights)
    ]
    unit = "points" if in_points(series.metric) else series.metric.name
    judged_by = series.nights[-1].judged_by
    band = None
    if judged_by is not None:
        band = TrendBand(reference=judged_by[0], threshold=judged_by[1])
    return draw_trend(title, points, unit, band)


def draw_sums(charted: Chart) -> Picture | None:
    """Return the cumulative sum of a series with the limit beyond which it alarms."""
    points = [
        TrendPoint(at=night.started_at, value=point.s, alarm=point.alarm)
        for night, point in zip(charted.series.nights, charted.points, strict=True)
    ]
    limit = TrendBand(reference=0.0, threshold=charted.limit, names=("no decline", "alarm beyond"))
    title = f"{charted.series.task}: decline as a cumulative sum"
    return draw_trend(title, points, "S (sd of a run)", limit)
