"""Print a comparison: the verdict, the flips in both directions, and how close the tokens were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from serve_eval.report.layout import say, tell_rehearsal
from serve_eval.report.summary import (
    Row,
    SummaryTask,
    list_details,
    print_commands,
    print_rows,
    print_tasks,
)
from serve_eval.report.summary.rows import describe_change
from serve_eval.report.terminal import RED, attribution, diagnose_command
from serve_eval.schema import ComparedTask, Comparison
from serve_eval.workflows.compare.places import draw_places
from serve_eval.workflows.compare.rows import (
    describe_flip,
    describe_service,
    describe_sides,
    describe_task,
    list_warnings,
    summarise_compared,
)

SHOWN = 3
"""Number of flips printed with their texts; comparison.json has more."""


def render(
    comparison: Comparison, out_dir: Path, console: Console, leads: Sequence[Row] = ()
) -> None:
    """Print the verdicts, what is behind them, and what to do next.

    `leads` are rows that name the likeliest causes, each behind the name of its task.
    """
    tell_rehearsal(comparison.rehearsal, console)
    tasks = list(map(summarise_compared, comparison.tasks))
    print_tasks(tasks, console)
    for summary, task in zip(tasks, comparison.tasks, strict=True):
        if len(tasks) > 1:
            say(console, task.task)
            print_rows(console, _list_details(summary))
        _explain(task, console)
    only = f"{comparison.tasks[0].task}: " if len(tasks) == 1 else ""
    print_rows(console, ((label, line.removeprefix(only)) for label, line in leads))
    print_rows(console, describe_sides(comparison))
    print_rows(console, (("warning", line) for line in list_warnings(comparison)))
    print_rows(console, [("folder", str(out_dir))])
    if any(task.verdict.outcome in RED for task in comparison.tasks):
        print_commands(console, [diagnose_command(out_dir)])


def _list_details(task: SummaryTask) -> list[Row]:
    """Return what must be known of one of several tasks, always with the difference and p."""
    rows, paired = list_details(task), task.verdict.paired
    if paired is None or paired.interval is None:
        return rows
    change = describe_change(task.verdict, task.result.metric)
    return rows if change in rows else [change, *rows]


def _explain(task: ComparedTask, console: Console) -> None:
    """Print the rows of a task that only a comparison has."""
    print_rows(console, describe_task(task))
    for flip in task.flips[:SHOWN]:
        print_rows(console, describe_flip(task.task, flip))
    left = task.worse + task.better - min(SHOWN, len(task.flips))
    if left > 0 and task.flips:
        more = f"and {left} more flips; comparison.json has {len(task.flips)} with their texts"
        print_rows(console, [("", more)])
    _places(task, console)
    print_rows(console, describe_service(task))
    for side, workers in zip("AB", task.attributions, strict=True):
        if workers is not None:
            attribution(workers, f"{task.task}: {side}", console)
    print_rows(console, (("warning", warning) for warning in task.warnings))


def _places(task: ComparedTask, console: Console) -> None:
    """Print where the examined flips first differ."""
    if task.places is None:
        return
    say(console, " first different token of the examined flips (#: confident):")
    for line in draw_places(task.places):
        say(console, line)
    if task.places.reading:
        print_rows(console, [("", task.places.reading)])
