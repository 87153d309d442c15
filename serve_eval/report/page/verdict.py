"""Show the verdict on a page with exactly the words and figures of the terminal's summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Fact, State
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow
from serve_eval.report.summary.figures import figure, span
from serve_eval.report.summary.headline import headline, points_of
from serve_eval.report.summary.rows import Row
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.report.summary.table import ORDER, cells, name_columns, title
from serve_eval.schema import VerdictOutcome

STATES: dict[str, State] = {
    VerdictOutcome.PASS: "pass",
    VerdictOutcome.FAIL: "fail",
    VerdictOutcome.ERROR: "fail",
    VerdictOutcome.NO_REFERENCE: "none",
}
"""The colours of outcomes; the others are amber. A missing reference must not outshine a FAIL."""
ROW_STATES: dict[str, State] = {"error": "fail", "warning": "warn"}
_CHANGES = ("drop", "rise", "change")
_NUMBERS = ("value", "reference", "change", "A", "B")


class FirstLine(NamedTuple):
    """The first line of a summary: its state, its badge and the rest."""

    state: State
    badge: str
    text: str


def name_state(outcome: VerdictOutcome) -> State:
    """Return the state of an outcome."""
    return STATES.get(outcome, "warn")


def make_first_line(tasks: Sequence[SummaryTask]) -> FirstLine:
    """Return the first line about one task, or about several."""
    if len(tasks) == 1:
        outcome, line = tasks[0].verdict.outcome, headline(tasks[0], None).plain
    else:
        outcomes = {task.verdict.outcome for task in tasks}
        outcome = next(one for one in ORDER if one in outcomes)
        line = title(tasks).plain
    return FirstLine(name_state(outcome), outcome.value, line.strip().removeprefix(outcome).strip())


def rule_task(task: SummaryTask) -> Ruler | None:
    """Return the terminal's line of a task, or None if it has none.

    Its words name the marks, of which the terminal's first line tells the figures.
    """
    points = points_of(task)
    if points is None:
        return None
    metric = task.result.metric
    said = f"● {task.names[0] or 'value'} {figure(points.value, metric)}"
    if points.interval is not None:
        said += f" ({span(points.interval, metric)})"
    if points.reference is not None:
        said += f"  ▲ {task.names[1]} {figure(points.reference, metric)}"
    if points.threshold is not None:
        said += f"  ┃ threshold {figure(points.threshold, metric)}"
    row = RulerRow(
        label=task.result.task,
        text=said,
        value=points.value,
        interval=points.interval,
        reference=points.reference,
        threshold=points.threshold,
    )
    low, high = points.ends
    return Ruler(low=low, high=high, rows=[row])


def make_facts(rows: Iterable[Row], task: str = "") -> list[Fact]:
    """Return the rows of a summary as facts; those of a task lead to its samples."""
    return [
        Fact(
            label=label,
            text=text,
            state=ROW_STATES.get(label, "none"),
            href=_find_place(label, text, task) if task else "",
        )
        for label, text in rows
    ]


def _find_place(label: str, text: str, task: str) -> str:
    """Return the link to the samples that a row is about, or "" if it is about none."""
    if label == "e.g.":
        name = text.partition(": answered ")[0]
        return f"#{urlencode({'sample': f'{task}/{name}'})}"
    return f"#{urlencode({'task': task, 'flip': 'changed'})}" if label in _CHANGES else ""


def picture_tasks(tasks: Sequence[SummaryTask]) -> Iterator[Picture]:
    """Yield the ruler of each of several tasks; that of a single one stands below the verdict."""
    if len(tasks) > 1:
        for task in tasks:
            if (ruler := rule_task(task)) is not None:
                [row] = ruler.rows
                yield Picture(title=f"{row.label}: value", description=row.text, ruler=ruler)


def tabulate_tasks(tasks: Sequence[SummaryTask]) -> DataTable:
    """Return the table of several tasks."""
    rows = []
    for task in tasks:
        shown = [DataCell(text=cell.plain) for cell in cells(task)]
        shown[0] = DataCell(text=shown[0].text, state=name_state(task.verdict.outcome))
        rows.append(shown)
    columns = [DataColumn(name=name, number=name in _NUMBERS) for name in name_columns(tasks)]
    return DataTable(title="Tasks", columns=columns, rows=rows)
