"""Print the summary of a run on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.report import lines
from serve_eval.report.attribution import sentences
from serve_eval.report.attribution import table as worker_table
from serve_eval.report.layout import fit_tables, say, tell_rehearsal
from serve_eval.report.summary.axis import choose_marks
from serve_eval.report.summary.headline import axis_of, headline
from serve_eval.report.summary.next_steps import explain_taking, next_steps
from serve_eval.report.summary.print_rows import print_commands, print_rows
from serve_eval.report.summary.rows import (
    Row,
    describe_cuts,
    describe_repeats,
    rows_of,
    warnings_of,
)
from serve_eval.report.summary.summary_task import SummaryTask, summarise_task, summarise_tasks
from serve_eval.report.summary.table import COLUMNS, cells, lay_out, name_columns, title
from serve_eval.schema import Load, Report, TaskReport, VerdictOutcome
from serve_eval.verdicts.references import spec_text


def print_summary(
    report: Report, out_dir: Path, console: Console, leads: Sequence[Row] = ()
) -> None:
    """Print the summary of a run.

    `leads` are rows that name the likeliest causes of a red run, each behind the task's name.
    """
    tell_rehearsal(report.rehearsal, console)
    tasks = summarise_tasks(report, out_dir)
    print_tasks(tasks, console)
    shared = find_shared(tasks)
    for row, names in shared.items():
        say(console, ", ".join(names))
        print_rows(console, [row])
    for task, one in zip(tasks, report.tasks, strict=True):
        rows = [row for row in list_details(task) if row not in shared] if len(tasks) > 1 else []
        if rows:
            say(console, task.result.task)
            print_rows(console, rows)
        print_rows(console, describe_workers(one, report))
        if one.attribution is not None and (workers := worker_table(one.attribution)) is not None:
            console.print(workers)
    print_rows(console, describe_leads(report, leads))
    print_rows(console, describe_run(report, out_dir))
    print_rows(console, (("note", line) for line in explain_taking(report)))
    print_commands(console, list(next_steps(report, out_dir)), choose_marks(console).between)


def print_tasks(tasks: Sequence[SummaryTask], console: Console) -> None:
    """Print a single task with its drawing and its rows, or the table of several tasks."""
    marks = choose_marks(console)
    if len(tasks) > 1:
        console.print(title(tasks), soft_wrap=True)
        _print_table(name_columns(tasks), list(map(cells, tasks)), console)
        return
    for task in tasks:
        line = axis_of(task, marks, console.width)
        console.print(headline(task, marks if line else None, console.width), soft_wrap=True)
        if line:
            print_rows(console, [("", line)])
        print_rows(console, rows_of(task))


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


def list_details(task: SummaryTask) -> list[Row]:
    """Return what must be known of one of several tasks."""
    if task.verdict.outcome is not VerdictOutcome.PASS:
        return list(rows_of(task))
    return [*describe_repeats(task), *describe_cuts(task), *warnings_of(task)]


def find_shared(tasks: Sequence[SummaryTask]) -> dict[Row, list[str]]:
    """Return the reasons that several tasks have, with the names of these tasks."""
    found: dict[Row, list[str]] = {}
    for task in tasks:
        for row in dict.fromkeys(list_details(task)):
            if row[0] == "why":
                found.setdefault(row, []).append(task.result.task)
    return {row: names for row, names in found.items() if len(names) > 1}


def describe_workers(task: TaskReport, report: Report) -> Iterator[Row]:
    """Yield which workers gave the bad answers of a task."""
    prefix = f"{task.result.task}: " if len(report.tasks) > 1 else ""
    if task.attribution is not None:
        yield from (("workers", f"{prefix}{line}") for line in sentences(task.attribution))


def describe_leads(report: Report, leads: Sequence[Row]) -> Iterator[Row]:
    """Yield the likeliest causes of a red run, without the name of an only task."""
    only = f"{report.tasks[0].result.task}: " if len(report.tasks) == 1 else ""
    return ((label, line.removeprefix(only)) for label, line in leads)


def describe_run(report: Report, out_dir: Path) -> Iterable[Row]:
    """Yield the rows about the run as a whole."""
    for line in lines.describe_path(report.path):
        yield "path", line.removeprefix("path: ")
    for warning in report.warnings:
        yield "warning", warning
    if report.plan.integration_test:
        yield "", "INTEGRATION TEST: ONE SAMPLE PER TASK, NOTHING WAS JUDGED"
    for load in report.loads[-1:]:
        yield "speed", _describe_load(load, report)
    for line in lines.describe_preset(report.plan):
        yield "preset", line.removeprefix("preset ")
    spec = spec_text(report.plan.accuracy_spec)
    where = report.endpoint.base_url or "no request was sent"
    yield "run", f"{out_dir}: {report.plan.model}, {spec}, {where}"


def _describe_load(load: Load, report: Report) -> str:
    rate = load.finished / load.wall_s if load.wall_s else 0.0
    shown = f"{rate:,.0f}" if rate >= 100.0 else f"{rate:.3g}"
    said = [
        f"{load.finished:,} answers in {load.wall_s:.1f} s, {shown}/s, at most"
        f" {load.max_in_flight} in flight"
    ]
    if len(report.tasks) == 1 and (times := report.tasks[0].traffic.latency_s):
        shown = ", ".join(f"{name} {lines.seconds(value)}" for name, value in times.items())
        said.append(f"latency {shown}")
    return "; ".join(said)
