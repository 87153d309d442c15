"""Print the report of a suite: a table of runs and tasks, the reasons, the waivers, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_eval.report.summary import badge, style_of
from serve_eval.report.text import clean
from serve_eval.schema import SuiteReport, SuiteRow, WaiverState, WaiverUse

_TESTED = ("p", "p holm", "q")


def render(report: SuiteReport, out_dir: Path, console: Console) -> None:
    """Print the verdict and the table. If that is too wide, print one line per row."""
    console.print(make_title(report), soft_wrap=True)
    names = list(dict.fromkeys(key for row in report.rows for key in row.attributes))
    tested = any(row.p is not None for row in report.rows)
    columns = [
        "run",
        *names,
        "task",
        "value",
        "reference",
        "threshold",
        *(_TESTED if tested else ()),
        "verdict",
    ]
    cells = [list_cells(row, names, tested=tested) for row in report.rows]
    widths = [max(map(len, column)) + 2 for column in zip(columns, *cells, strict=True)]
    if sum(widths) <= console.width:
        console.print(_table(columns, cells, report.rows))
    else:
        skipped = ("run", "task", "verdict")
        for row, line in zip(report.rows, cells, strict=True):
            named = [
                f"{n} {cell}"
                for n, cell in zip(columns, line, strict=True)
                if n not in skipped and cell != "-"
            ]
            _say(
                console,
                f"{row.run}/{row.task}: {line[-1]}: {', '.join(named)}",
                style_of(row.outcome),
            )
    for text in list_explanations(report):
        _say(console, text)
    for use in report.waivers:
        _say(console, describe_waiver(use))
    _say(console, f"reports of the runs: {out_dir}/runs/<run>/report.json")
    _say(console, f"suite folder: {out_dir}")


def make_title(report: SuiteReport) -> Text:
    """Return the verdict of the suite, and how many of its tasks had which."""
    counts = Counter(describe_verdict(row) for row in report.rows)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    total = f"{len(report.runs)} runs, {len(report.rows)} tasks"
    line = badge(report.verdict, style_of(report.verdict))
    return line.append(clean(f"  suite {report.name}: {report.verdict} ({total}: {counted})"))


def _table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], rows: Sequence[SuiteRow]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    words = columns.index("task")
    for i, name in enumerate(columns):
        table.add_column(
            Text(clean(name)),
            justify="left" if i <= words or i == len(columns) - 1 else "right",
            no_wrap=True,
        )
    for line, row in zip(cells, rows, strict=True):
        style = "bold yellow" if row.waiver else style_of(row.outcome)
        table.add_row(*map(Text, line[:-1]), Text(line[-1], style=style))
    return table


def list_cells(row: SuiteRow, attributes: Sequence[str], *, tested: bool) -> list[str]:
    tests = [_p(row.p), _p(row.p_holm), _p(row.q_bh)] if tested else []
    told = [clean(str(row.attributes.get(name, "-"))) for name in attributes]
    return [
        row.run,
        *told,
        row.task,
        show_value(row),
        _number(row.reference),
        _number(row.threshold),
        *tests,
        describe_verdict(row),
    ]


def describe_verdict(row: SuiteRow) -> str:
    if row.waiver is not None:
        return f"{row.own.value} (waived)"
    if row.outcome is not row.own:
        return f"{row.outcome.value} (alone: {row.own.value})"
    return row.outcome.value


def show_value(row: SuiteRow) -> str:
    """Return the value or, if answers are missing, the range of possible values."""
    if row.failed and row.bounds is not None:
        return f"{row.bounds[0]:.3f}..{row.bounds[1]:.3f}"
    return _number(row.evaluated) if row.estimate is None else f"~{_number(row.estimate)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _p(value: float | None) -> str:
    return "-" if value is None else "<.0001" if value < 0.0001 else f"{value:.4f}"


def list_explanations(report: SuiteReport) -> Iterator[str]:
    """Yield lines that explain the table: errors, reasons, p-values and warnings."""
    for run in report.runs:
        if run.error is not None:
            yield f"{run.name}: {run.error.kind}: {run.error.message}"
            yield from (f"  {hint}" for hint in (run.error.hint,) if hint)
    errors = {run.name for run in report.runs if run.error is not None}
    for row in (row for row in report.rows if row.run not in errors):
        yield from (f"{row.run}/{row.task}: {line}" for line in _remarks(row))
    if sum(row.p_holm is not None for row in report.rows) > 1:
        yield (
            f"p holm: {report.alpha:g} or less proves a drop; any false alarm has at most that"
            " probability; q: for triage only"
        )
    for warning, count in Counter(
        warning for run in report.runs for warning in run.warnings
    ).items():
        yield f"warning: {warning}{f' ({count} runs)' if count > 1 else ''}"


def _remarks(row: SuiteRow) -> Iterator[str]:
    """Yield the reasons of a row's verdict, and the warning that its sample is small."""
    yield from row.reasons
    yield from (f"warning: {warning}" for warning in row.warnings if warning.startswith("small"))


def describe_waiver(use: WaiverUse) -> str:
    waiver = use.waiver
    what = ", ".join(f"{key} {value}" for key, value in waiver.match.items())
    failing = ", ".join(use.failing)
    said = {
        WaiverState.APPLIED: f"waived until {waiver.until}: {failing}: {waiver.reason}",
        WaiverState.EXPIRED: (
            f"warning: the waiver for {what} expired on {waiver.until} ({waiver.reason}); "
            + (
                f"it no longer covers {failing}"
                if failing
                else "no task that it matches fails: remove it"
            )
        ),
        WaiverState.NOT_NEEDED: (
            f"the waiver for {what} is no longer needed: every task that it matches passes "
            f"({waiver.reason}, until {waiver.until})"
        ),
        WaiverState.UNDECIDED: (
            f"the waiver for {what} was not needed so far: a task that it matches is still"
            f" undecided ({waiver.reason}, until {waiver.until})"
        ),
        WaiverState.NO_MATCH: (
            f"warning: the waiver for {what} matches no task of this suite ({waiver.reason})"
        ),
    }
    return said[use.state]


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(Text(clean(text), style=style or ""), soft_wrap=True)
