"""Lay out several tasks as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import fit_tables
from serve_eval.report.summary import figures
from serve_eval.report.summary.headline import style_of
from serve_eval.report.summary.summary_task import SummaryTask, summarise_task
from serve_eval.report.text import clean
from serve_eval.schema import Report, VerdictOutcome

SHORTEST = 12
"""Characters of a name that are shown at least."""
GAP = 2
"""Characters between two columns."""
COLUMNS = ("verdict", "task", "value", "95 %", "reference", "change", "fails")
ORDER = (
    VerdictOutcome.FAIL,
    VerdictOutcome.ERROR,
    VerdictOutcome.INCONCLUSIVE,
    VerdictOutcome.UNSUPPORTED,
    VerdictOutcome.NO_REFERENCE,
    VerdictOutcome.SHARD,
    VerdictOutcome.NOT_JUDGED,
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
