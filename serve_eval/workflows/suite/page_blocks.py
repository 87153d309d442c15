"""Make what only the page of a suite shows: runs by tasks, and values by attribute."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from urllib.parse import quote

from serve_eval.errors import RunFolderError
from serve_eval.report.document import name_state
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    PictureSection,
    Section,
    State,
)
from serve_eval.report.pictures import (
    IntervalRow,
    Picture,
    ScatterPoint,
    draw_attribute,
    draw_boxes,
    draw_intervals,
)
from serve_eval.report.run.conclusions import name_pictures
from serve_eval.report.summary.figures import figure, in_points, span
from serve_eval.schema import Scalar, SuiteReport, SuiteRow, TaskReport
from serve_eval.series.result_table import name_asked
from serve_eval.storage.file_names import PAGE_FILE, SUITE_RUNS
from serve_eval.storage.report_file import find_report
from serve_eval.workflows.suite.rows import describe_verdict, is_marked, show_value

_WORST: tuple[State, ...] = ("fail", "warn", "none", "pass")
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z-]*)\s*")
Tasks = dict[tuple[str, str], TaskReport]
Headings = dict[tuple[str, str], str]
"""The heading of each run and task, which differs between ways to ask a task."""


def list_page_blocks(report: SuiteReport, folder: Path) -> Iterator[Section]:
    """Yield the runs by tasks and the pictures. `folder` has the reports of its runs."""
    tasks = _read_tasks(report, folder)
    headings = _name_headings(report, tasks)
    yield _make_matrix(report, tasks, headings, folder)
    drawn = [*_draw_tasks(report, tasks, headings), *_draw_attributes(report, tasks, headings)]
    if drawn:
        yield PictureSection(name_pictures(drawn), drawn, closed=len(drawn) > 1)


def _read_tasks(report: SuiteReport, folder: Path) -> Tasks:
    """Return the task reports of the runs that ended, by run and task."""
    found: Tasks = {}
    for run in report.runs:
        try:
            one = find_report(folder / SUITE_RUNS / run.name)
        except RunFolderError:
            continue
        for task in one.tasks if one is not None else ():
            found[run.name, task.result.task] = task
    return found


def find_state(row: SuiteRow) -> State:
    """Return the colour of a row: what is waived, or dropped without a FAIL, is a warning."""
    warned = row.waiver is not None or (is_marked(row) and row.proven == "drop")
    return "warn" if warned else name_state(row.outcome)


def _name_headings(report: SuiteReport, tasks: Tasks) -> Headings:
    """Return the heading of each row; a run without a report has one that its task has."""
    named = dict(zip(tasks, name_asked(list(tasks.values())), strict=True))
    first = {task: heading for (_, task), heading in reversed(named.items())}
    places = ((row.run, row.task) for row in report.rows)
    return {place: named.get(place, first.get(place[1], place[1])) for place in places}


def _make_matrix(report: SuiteReport, tasks: Tasks, headings: Headings, folder: Path) -> DataTable:
    """Return the runs by tasks: values with intervals and verdicts, the worst run first."""
    names = list(dict.fromkeys(headings.values()))
    by_place = {(row.run, headings[row.run, row.task]): row for row in report.rows}

    def badness(run: str) -> tuple[int, float]:
        rows = [by_place[run, name] for name in names if (run, name) in by_place]
        worst = min((_WORST.index(find_state(row)) for row in rows), default=0)
        values = [row.evaluated for row in rows if row.evaluated is not None]
        return worst, sum(values) / len(values) if values else 0.0

    rows = []
    for run in sorted((one.name for one in report.runs), key=badness):
        page = f"{SUITE_RUNS}/{run}/{PAGE_FILE}"
        cells = [DataCell(run, href=quote(page) if (folder / page).exists() else "")]
        for name in names:
            row = by_place.get((run, name))
            cells.append(DataCell("-") if row is None else _cell(row, tasks.get((run, row.task))))
        rows.append(cells)
    return DataTable(
        "Runs by tasks",
        columns=[DataColumn("run"), *(DataColumn(name) for name in names)],
        rows=rows,
        caption="The worst run first. Values in points with 95 % intervals.",
    )


def _cell(row: SuiteRow, task: TaskReport | None) -> DataCell:
    text = show_value(row)
    if task is not None and not row.failed and row.evaluated is not None:
        metric, ends = task.result.metric, task.result.interval
        text = figure(row.evaluated, metric) + (f" ({span(ends, metric)})" if ends else "")
    text = f"{text} {describe_verdict(row)}"
    return DataCell(text, order=row.evaluated, state=find_state(row))


def _pick(report: SuiteReport, headings: Headings, heading: str) -> list[SuiteRow]:
    """Return the rows with a value that have this heading."""
    rows = (row for row in report.rows if headings[row.run, row.task] == heading)
    return [row for row in rows if row.evaluated is not None]


def _draw_tasks(report: SuiteReport, tasks: Tasks, headings: Headings) -> Iterator[Picture]:
    """Yield the values of all runs for each task, the lowest first."""
    for name in dict.fromkeys(headings.values()):
        rows = _pick(report, headings, name)
        known = [(row, found) for row in rows if (found := tasks.get((row.run, row.task)))]
        if len(known) < 2:
            continue
        entries = [
            IntervalRow(
                name=row.run,
                value=row.evaluated or 0.0,
                interval=task.result.interval,
                before=row.reference,
            )
            for row, task in sorted(known, key=lambda pair: pair[0].evaluated or 0.0)
        ]
        drawn = draw_intervals(f"{name}: all runs", entries, known[0][1].result.metric)
        if drawn is not None:
            yield drawn


def _draw_attributes(report: SuiteReport, tasks: Tasks, headings: Headings) -> Iterator[Picture]:
    """Yield the values of each task over each attribute that differs between its runs.

    Values of two tasks never share a picture, since they do not mean the same.
    """
    names = dict.fromkeys(key for row in report.rows for key in row.attributes)
    for name, heading in product(names, dict.fromkeys(headings.values())):
        rows = [
            (row, row.attributes[name])
            for row in _pick(report, headings, heading)
            if name in row.attributes
        ]
        if len({str(value) for _, value in rows}) < 2:
            continue
        found = tasks.get((rows[0][0].run, rows[0][0].task))
        metric = None if found is None else found.result.metric
        unit = "points" if metric is None or in_points(metric) else metric.name
        drawn = _draw_attribute(f"{heading}: value by {name}", name, rows, unit)
        if drawn is not None:
            yield drawn


def _draw_attribute(
    title: str, name: str, rows: Sequence[tuple[SuiteRow, Scalar]], unit: str
) -> Picture | None:
    """Return the values of a task over an attribute: points for numbers, boxes for words.

    None if each word has one run, since the picture of all runs shows the same.
    """
    numbers = [read_number(value) for _, value in rows]
    units = {one[1] for one in numbers if one is not None}
    if None not in numbers and len(units) == 1:
        points = [
            ScatterPoint(name=row.run, x=one[0], y=row.evaluated or 0.0)
            for (row, _), one in zip(rows, numbers, strict=True)
            if one is not None
        ]
        measured = f" ({units.pop()})" if units != {""} else ""
        return draw_attribute(title, points, (f"{name}{measured}", f"value ({unit})"))
    groups: dict[str, list[float]] = {}
    for row, value in rows:
        groups.setdefault(str(value), []).append(row.evaluated or 0.0)
    return draw_boxes(title, groups, unit) if len(groups) < len(rows) else None


def read_number(value: Scalar) -> tuple[float, str] | None:
    """Return the number and the unit of an attribute such as 8, "70B" or "4-bit", if it has one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value), ""
    found = _NUMBER.fullmatch(value)
    return None if found is None else (float(found[1]), found[2])
