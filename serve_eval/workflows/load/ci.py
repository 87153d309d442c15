"""Describe a check over loads for CI systems: a case for each task at each load. Pure."""

from __future__ import annotations

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.one_line import OneLine, describe_drop, lead
from serve_eval.report.task_line import split_change
from serve_eval.schema import LoadPoint, LoadSurface, LoadTask
from serve_eval.stats.tango import score_bounds
from serve_eval.stats.wilson import INTERVAL_ALPHA
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS
from serve_eval.workflows.load.judging import find_exit_code
from serve_eval.workflows.load.text import COLUMNS, OUTCOMES, list_cells

_RANKS = (FAIL, NOTHING_SCORED)
"""Exit codes of tasks, the worst first; then the undecided ones, then PASS."""


def describe_load(found: LoadSurface) -> CiResult:
    """Return the result of a check over loads."""
    codes = [find_exit_code([task]) for task in found.tasks]
    ranks = [_rank(code) for code in codes]
    lines = [_make_line(found, task, code) for task, code in zip(found.tasks, codes, strict=True)]
    led = lead(lines, ranks, "tasks")
    suites = [
        CiSuite(
            name=f"serve-eval load {task.task}",
            cases=[_describe_point(task, point, line) for point in task.points],
            host=found.base_url,
            seconds=found.wall_s / len(found.tasks),
        )
        for task, line in zip(found.tasks, led, strict=True)
    ]
    rows = [
        [task.task, *(cell.plain for cell in list_cells(point, broken=point.load in task.broken))]
        for task in found.tasks
        for point in task.points
    ]
    return CiResult(
        title=f"serve-eval load {found.base_url}",
        outcome=OUTCOMES[found.exit_code][0],
        suites=suites,
        table=CiTable(
            columns=("outcome", "task", *COLUMNS[:-1]),
            rows=[[row[-1] or "lowest", *row[:-1]] for row in rows],
        ),
        notes=[
            *(f"{task.task}: {task.words}" for task in found.tasks),
            *(f"warning: {line}" for line in found.warnings),
        ],
        line=led[min(range(len(led)), key=lambda i: ranks[i])] if led else None,
    )


def _rank(code: int) -> int:
    return _RANKS.index(code) if code in _RANKS else 3 if code == PASS else 2


def _make_line(found: LoadSurface, task: LoadTask, code: int) -> OneLine:
    """Return the line about a task: its worst load against the lowest one."""
    asked = [point for point in task.points if point.outcome != "gave up"]
    accused = [point for point in asked if point.load in (*task.broken, *task.failing)]
    shown = min(accused or asked[1:], key=lambda point: point.won - point.lost, default=None)
    return OneLine(
        outcome=OUTCOMES[code][0],
        about=" ".join(filter(None, (task.task, found.model))),
        figures="" if shown is None else _describe_figures(asked[0], shown),
        counts=f"{sum(p.scored + p.failed for p in asked):,} asked,"
        f" {sum(p.failed for p in asked)} failed",
        cause="" if code == PASS else task.words,
        sure=True,
    )


def _describe_figures(lowest: LoadPoint, shown: LoadPoint) -> str:
    """Return the value at a load against that at the lowest one.

    The interval is that of the pairs, by Tango's score, for scores that are right or wrong.
    """
    if lowest.value is None or shown.value is None:
        return ""
    change, interval = shown.value - lowest.value, None
    if shown.paired and shown.right_per_s is not None:
        low, high = score_bounds(shown.lost, shown.won, shown.paired, INTERVAL_ALPHA / 2.0)
        change = 100.0 * (shown.won - shown.lost) / shown.paired
        interval = (100.0 * low, 100.0 * high)
    drop, *ends = split_change(change, interval, points=True)
    here = f"{shown.value:.1f} at {shown.load} in flight"
    return describe_drop(here, f"{lowest.value:.1f} at {lowest.load}", drop, ends)


def _describe_point(task: LoadTask, point: LoadPoint, line: OneLine) -> CiCase:
    broken = point.load in task.broken or point.load in task.failing
    lost = point.outcome == "gave up"
    cells = list_cells(point, broken=point.load in task.broken)
    figures = {name: cell.plain for name, cell in zip(COLUMNS, cells, strict=True) if name}
    said = ", ".join(f"{name} {value}" for name, value in figures.items() if value)
    return CiCase(
        group=task.task,
        name=f"load {point.load}",
        state=CiState.FAILURE if broken else CiState.ERROR if lost else CiState.PASSED,
        line=line if broken or lost else None,
        message=said,
        details=[said],
        properties=figures,
    )
