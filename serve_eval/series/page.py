"""Make the page of drift charts: the values and the sums of each series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval import __version__
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    PageContent,
    PictureSection,
    Section,
    State,
    TextLines,
)
from serve_eval.report.pictures import Picture, TrendBand, TrendPoint, draw_trend
from serve_eval.report.summary.figures import in_points
from serve_eval.series.chart import Chart, date

COLUMNS = ("began (UTC)", "value", "missing", "flips", "x", "z", "S", "alarm", "run")


def make_drift_page(charts: Sequence[Chart], notes: Sequence[str], folder: Path) -> PageContent:
    """Return the page of the charts, those with an alarm first."""
    alarms = [one for one in charts if one.points[-1].alarm]
    ordered = [*alarms, *(one for one in charts if one not in alarms)]
    state: State = "warn" if alarms else "pass"
    runs = sum(len(one.series.nights) for one in charts)
    return PageContent(
        kind="drift",
        title=f"drift of {folder}: {len(alarms)} alarms",
        heading=str(folder),
        state=state,
        badge="ALARM" if alarms else "NO ALARM",
        headline=f"{len(alarms)} of {len(charts)} series decline; {runs} runs",
        rows=[
            Fact(label=one.series.name, text=warning, state="warn")
            for one in ordered
            for warning in one.warnings
        ],
        sections=tuple(_list_sections(ordered, notes, folder)),
        foot=f"serve-eval {__version__}",
    )


def _list_sections(
    charts: Sequence[Chart], notes: Sequence[str], folder: Path
) -> Iterator[Section]:
    for one in charts:
        if pictures := [drawn for drawn in _draw(one) if drawn is not None]:
            yield PictureSection(title=one.series.name, pictures=pictures)
        yield _tabulate(one, folder)
    if notes:
        yield TextLines(title="Notes", lines=notes, closed=True)


def _draw(one: Chart) -> Iterator[Picture | None]:
    yield draw_values(one)
    points = [
        TrendPoint(at=night.started_at, value=point.s, alarm=point.alarm)
        for night, point in zip(one.series.nights, one.points, strict=True)
    ]
    limit = TrendBand(reference=0.0, threshold=one.limit, names=("no decline", "alarm beyond"))
    title = f"{one.series.task}: decline as a cumulative sum"
    yield draw_trend(title, points, "S (sd of a run)", limit)


def draw_values(one: Chart) -> Picture | None:
    """Return the values of a series with their alarms, and the reference of the latest run."""
    nights, metric = one.series.nights, one.series.metric
    reference = nights[-1].reference
    points = [
        TrendPoint(at=night.started_at, value=night.value, alarm=point.alarm)
        for night, point in zip(nights, one.points, strict=True)
    ]
    unit = "points" if in_points(metric) else metric.name
    band = None if reference is None else TrendBand(reference=reference.value)
    return draw_trend(f"{one.series.task}: value of each run", points, unit, band)


def _tabulate(one: Chart, folder: Path) -> DataTable:
    rows = []
    for night, x, flips, point in zip(one.series.nights, one.x, one.flips, one.points, strict=True):
        where = night.run.relative_to(folder) if night.run != folder else night.run.name
        numbers = (night.value, float(night.missing), flips, x, point.z, point.s)
        texts = (
            f"{night.value:.3f}",
            str(night.missing),
            "-" if flips is None else str(flips),
            f"{x:.3f}",
            f"{point.z:.2f}",
            f"{point.s:.2f}",
        )
        cells = [
            DataCell(text=text, order=None if number is None else float(number))
            for text, number in zip(texts, numbers, strict=True)
        ]
        alarm = DataCell(
            text="ALARM" if point.alarm else "-", state="warn" if point.alarm else "none"
        )
        rows.append([DataCell(text=date(night)), *cells, alarm, DataCell(text=str(where))])
    columns = [DataColumn(name=name, number=0 < i < 7) for i, name in enumerate(COLUMNS)]
    return DataTable(
        title=f"{one.series.task}: runs",
        columns=columns,
        rows=rows,
        caption=(
            f"x is the {one.measure}; a run's standard deviation is {one.sd:.3f} points,"
            f" {one.noise.source}"
        ),
        closed=True,
    )
