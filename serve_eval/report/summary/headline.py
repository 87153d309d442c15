"""Show tasks by verdict: a headline, an axis that draws its numbers, a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from serve_eval.frozen import freeze, freeze_places
from serve_eval.report.summary import figures
from serve_eval.report.summary.figures import SummaryTask, summarise_task
from serve_eval.report.text import clean, fit_tables
from serve_eval.schema import Report, VerdictOutcome

STYLES: Final[Mapping[str, str]] = {
    VerdictOutcome.PASS: "bold green",
    VerdictOutcome.PASS_BY_IDENTITY: "bold green",
    VerdictOutcome.FAIL: "bold red",
    VerdictOutcome.ERROR: "bold red",
    VerdictOutcome.NO_REFERENCE: "bold",
}
OTHER = "bold yellow"
WITH_MARGIN = ("paired", "noninferiority")
"""Rules that ask whether a drop of a margin is excluded."""
AROUND = 18
"""Width of the label and of the ends of the drawn line."""
WIDEST = 72
"""Width of the drawn line at most, without its labels."""


def badge(outcome: str, style: str) -> Text:
    """Return the verdict as a block of colour."""
    return Text().append(f" {outcome} ", style=f"{style} reverse")


def style_of(outcome: str) -> str:
    """Return the colour of an outcome."""
    return STYLES.get(outcome, OTHER)


def list_parts(task: SummaryTask, marks: Marks | None) -> Iterator[str]:
    """Yield the value of a task, what it is compared with, the change and the rule."""
    metric, verdict = task.result.metric, task.verdict
    if (value := figures.show_value(task)) != "-":
        shown = "; ".join(filter(None, (value, figures.bound_next_to_value(task))))
        yield " ".join(filter(None, (marks.value if marks else "", task.names[0], shown)))
    if verdict.reference is not None:
        shown = f"{task.names[1]} {figures.figure(verdict.reference, metric)}"
        yield f"{marks.reference} {shown}" if marks else shown
    if (change := figures.change(task)) is not None:
        yield figures.add_sign(change, metric)
    if rule := criterion(task):
        mark = f"{marks.threshold} " if marks and verdict.limit is not None else ""
        yield f"{mark}{rule}"


def criterion(task: SummaryTask) -> str:
    """Return in a few words what decides the verdict."""
    verdict, metric = task.verdict, task.result.metric
    if verdict.rule == "none":
        return ""
    if verdict.limit is not None:
        side = "below" if metric.higher_is_better else "above"
        return f"fails {side} {figures.figure(verdict.limit, metric)} ({verdict.rule})"
    if verdict.rule in WITH_MARGIN and verdict.paired is not None:
        return f"margin {figures.figure(verdict.paired.margin, metric)} ({verdict.rule})"
    return f"rule {verdict.rule}"


def points_of(task: SummaryTask) -> AxisPoints | None:
    """Return what the drawn line of a task shows, or None if its value is not known in points."""
    result, verdict = task.result, task.verdict
    value = verdict.evaluated
    if value is None or result.failed or not figures.in_points(result.metric):
        return None
    return AxisPoints(
        value=value,
        interval=result.interval,
        threshold=verdict.limit,
        reference=verdict.reference,
    )


WINDOWS = (5.0, 10.0, 20.0, 50.0, 100.0)
"""Widths of the shown range, in points. The smallest that leaves room is used."""
ROOM = 1.4
"""The shown range is at least this often as wide as what it must show."""
TICKS = 10


@freeze_places
class Marks:
    """The characters of the line, and the one between two commands."""

    value: str
    reference: str
    threshold: str
    line: str
    tick: str
    interval: str
    between: str


UNICODE = Marks("●", "▲", "┃", "─", "┴", "━", "·")
ASCII = Marks("o", "^", "|", "-", "+", "=", ";")


def choose_marks(console: Console) -> Marks:
    """Return the characters that the output can show."""
    return UNICODE if console.encoding.lower().startswith("utf") else ASCII


@freeze
class AxisPoints:
    """The marks on the line, in points: a value with its interval, a threshold and a reference."""

    value: float
    interval: tuple[float, float] | None = None
    threshold: float | None = None
    reference: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the shown range, on a tick, within 0 to 100."""
        marks = (self.value, *(self.interval or ()), self.threshold, self.reference)
        return _window(x for x in marks if x is not None)


def draw_axis(width: int, marks: Marks, points: AxisPoints) -> str:
    """Return the line: "70 ┴──┃─▲━●━┴── 90".

    `width` is that of the text without its labels; values are in points out of 100. What lies on
    the same character is drawn in the order threshold, reference, value; the last one stays.
    """
    low, high = points.ends
    places = max(TICKS + 1, width)

    def place(point: float) -> int:
        return round((min(max(point, low), high) - low) / (high - low) * (places - 1))

    cells = [marks.line] * places
    for i in range(TICKS + 1):
        cells[round(i * (places - 1) / TICKS)] = marks.tick
    if points.interval is not None:
        first, last = map(place, points.interval)
        cells[first : last + 1] = [marks.interval] * (last + 1 - first)
    for x, mark in ((points.threshold, marks.threshold), (points.reference, marks.reference)):
        if x is not None:
            cells[place(x)] = mark
    cells[place(points.value)] = marks.value
    return f"{low:g} {''.join(cells)} {high:g}"


def _window(shown: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a range that holds everything, on a tick, within 0 to 100."""
    values = list(shown)
    least, most = max(0.0, min(values)), min(100.0, max(values))
    for width in WINDOWS:
        step = width / TICKS
        low = math.floor((least + most - width) / 2.0 / step) * step
        low = min(max(low, 0.0), 100.0 - width)
        if width >= ROOM * (most - least) and low <= least and most <= low + width:
            return low, low + width
    return 0.0, 100.0


SHORTEST = 12
"""Characters of a name that are shown at least."""
GAP = 2
"""Characters between two columns."""
COLUMNS = ("verdict", "task", "value", "95 %", "reference", "change", "fails")
ORDER = (
    VerdictOutcome.FAIL,
    VerdictOutcome.ERROR,
    VerdictOutcome.INCONCLUSIVE,
    VerdictOutcome.NOT_ASKED,
    VerdictOutcome.UNSUPPORTED,
    VerdictOutcome.NO_REFERENCE,
    VerdictOutcome.SHARD,
    VerdictOutcome.NOT_JUDGED,
    VerdictOutcome.PASS_BY_IDENTITY,
    VerdictOutcome.PASS,
)
"""Outcomes, the worst first."""


def name_columns(tasks: Sequence[SummaryTask]) -> tuple[str, ...]:
    """Return COLUMNS with the names of the value and of the reference if tasks give others."""
    value, reference = tasks[0].names if tasks else ("", "reference")
    named = {"value": value or "value", "reference": reference}
    return tuple(named.get(column, column) for column in COLUMNS)


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int
) -> tuple[Sequence[str], Sequence[Sequence[Text]]]:
    """Return columns and rows that fit `width`, if that is possible.

    The change is left out first, since value and reference show it; then names are shortened.
    """
    if measure(columns, rows) > width:
        kept = [i for i, name in enumerate(columns) if name != "change"]
        columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
    over = measure(columns, rows) - width
    if over > 0 and "task" in columns:
        place = columns.index("task")
        room = max(len(row[place]) for row in rows) - over
        if room >= SHORTEST:
            rows = [[*row[:place], _shorten(row[place], room), *row[place + 1 :]] for row in rows]
    return columns, rows


def measure(columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> int:
    """Return the width of a table, with the gap after each column."""
    return sum(
        max(len(name), *(len(row[i]) for row in rows)) + GAP for i, name in enumerate(columns)
    )


def _shorten(name: Text, room: int) -> Text:
    if len(name) <= room:
        return name
    return Text(f"{name.plain[: room - 3]}...")


def cells(task: SummaryTask) -> list[Text]:
    """Return the cells of a task in the order of COLUMNS."""
    verdict, metric = task.verdict, task.result.metric
    outcome = verdict.outcome
    interval = task.result.interval
    change = figures.change(task)
    return [
        Text(outcome.value, style=style_of(outcome)),
        Text(clean(task.result.task)),
        Text(figures.show_value(task)),
        Text("-" if interval is None else figures.span(interval, metric)),
        Text("-" if verdict.reference is None else figures.figure(verdict.reference, metric)),
        Text("-" if change is None else figures.add_sign(change, metric)),
        Text(clean(_limit(task))),
    ]


def _limit(task: SummaryTask) -> str:
    """Return the values that fail, or the rule if it is no comparison with a threshold."""
    verdict, metric = task.verdict, task.result.metric
    if verdict.limit is None:
        return "-" if verdict.rule == "none" else verdict.rule
    sign = "<" if metric.higher_is_better else ">"
    return f"{sign} {figures.figure(verdict.limit, metric)}"


def print_table_of_runs(reports: Mapping[str, Report], console: Console) -> None:
    """Print a table with a row for each task of some runs, by their names."""
    columns: tuple[str, ...] = ("run", *COLUMNS)
    rows = [
        [Text(name), *cells(summarise_task(task))]
        for name, report in reports.items()
        for task in report.tasks
    ]
    if len({row[2].plain for row in rows}) == 1:  # the task's name says nothing
        columns, rows = (*columns[:2], *columns[3:]), [[*row[:2], *row[3:]] for row in rows]
    _print_table(columns, rows, console)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Text]], console: Console) -> None:
    laid_out = lay_out(columns, rows, console.width)
    console.print(*fit_tables(*laid_out, console.width), sep="\n\n")
