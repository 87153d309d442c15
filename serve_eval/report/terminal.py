"""The report for people: one table of verdicts, the reasons below it, where the run folder is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_eval.report.text import clean
from serve_eval.schema import Report, TaskReport, VerdictOutcome

_STYLES = {
    VerdictOutcome.PASS: "bold green",
    VerdictOutcome.FAIL: "bold red",
    VerdictOutcome.ERROR: "bold red",
}
_COLUMNS = (
    "task",
    "n",
    "failed",
    "truncated",
    "unparsed",
    "evaluated",
    "reference",
    "threshold",
    "theta",
    "alpha",
    "beta",
    "sigma",
    "verdict",
)


def render(report: Report, out_dir: Path, console: Console) -> None:
    """Prints the verdict table and what explains it. Wide tables turn into one block per task on a narrow terminal."""
    rows = [_row(task) for task in report.tasks]
    widths = [max(len(cell) for cell in column) for column in zip(_COLUMNS, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= console.width:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in ("task", "verdict") else "right", no_wrap=True)
        for task, row in zip(report.tasks, rows, strict=True):
            style = _STYLES.get(task.verdict.outcome, "bold yellow")
            table.add_row(*map(Text, row[:-1]), Text(row[-1], style=style))
        console.print(table)
    else:
        for task, row in zip(report.tasks, rows, strict=True):
            _block(task, row, console)
    for task in report.tasks:
        _explain(task, console)
    for warning in report.warnings:
        _say(console, f"warning: {warning}")
    if report.plan.integration_test:
        _say(console, "INTEGRATION TEST: ONE SAMPLE PER TASK, NOTHING WAS JUDGED")
    _say(console, f"run folder: {out_dir}")


def _block(task: TaskReport, row: list[str], console: Console) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, cell in zip(_COLUMNS, row, strict=True):
        style = _STYLES.get(task.verdict.outcome, "bold yellow") if name == "verdict" else ""
        grid.add_row(Text(name, style="bold"), Text(cell, style=style))
    console.print(grid)
    console.print()


def _row(task: TaskReport) -> list[str]:
    result, verdict = task.result, task.verdict
    return [
        result.task,
        str(result.planned),
        str(result.failed),
        str(result.truncated),
        str(result.unparsed),
        _number(verdict.evaluated),
        _number(verdict.reference),
        _number(verdict.threshold),
        _number(verdict.theta),
        _plain(verdict.alpha),
        _plain(verdict.beta),
        _plain(verdict.sigma),
        verdict.outcome.value,
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _explain(task: TaskReport, console: Console) -> None:
    result, verdict = task.result, task.verdict
    name = result.task
    if result.failed and result.scored:
        scored = f"{result.scored} of {result.planned} samples were scored"
        bounds = (
            "" if verdict.bounds is None else f"; the value lies in [{verdict.bounds[0]:.3f}, {verdict.bounds[1]:.3f}]"
        )
        _say(console, f"{name}: {scored}{bounds}")
    if result.failures:
        _say(console, f"{name}: failures: {', '.join(f'{kind} {count}' for kind, count in result.failures.items())}")
    if result.parts:
        _say(console, f"{name}: {', '.join(f'{part} {value:.3f}' for part, value in result.parts.items())}")
    if verdict.num_samples is not None and verdict.threshold is not None and verdict.num_samples != result.planned:
        _say(console, f"{name}: the test uses the registered n = {verdict.num_samples}; {result.planned} were asked")
    if verdict.protocol is not None:
        _say(console, f"{name}: protocol: {verdict.protocol}")
    for reason in verdict.reasons:
        _say(console, f"{name}: {reason}")
    for warning in verdict.warnings:
        _say(console, f"{name}: warning: {warning}")


def _say(console: Console, text: str) -> None:
    console.print(Text(clean(text)), soft_wrap=True)
