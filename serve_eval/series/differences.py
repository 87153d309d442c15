"""Compare the deployments of a table with a baseline, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import PlanError, RunFolderError, ServeEvalError
from serve_eval.evaluation.agreement.answer_pairs import read_task
from serve_eval.evaluation.agreement.score_pairs import score_pairs
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.report.results_table import DeploymentRow, ResultCell, ResultsTable, TaskColumn
from serve_eval.report.results_table.content import RUN
from serve_eval.schema import MEAN
from serve_eval.stats.multiplicity import holm

ALPHA = 0.05
"""Probability of any false star in a table."""


def compare_rows(table: ResultsTable, baseline: str = "") -> ResultsTable:
    """Return the table with the paired differences of its rows, and Holm's correction over them.

    `baseline` names a row, which the others are compared with; without it, each keeps the
    difference from the reference that judged it. Raises PlanError for an unknown name, and if
    nothing can be compared.
    """
    if baseline:
        first = _find(table, baseline)
        name = table.label(first)
        rows = [_compare(row, first, table.columns) for row in table.rows if row is not first]
        table = replace(table, references=())
    else:
        cells = [cell for row in table.rows for cell in row.cells if cell is not None]
        names = {one.reference_name for one in cells if one.difference is not None}
        name = (
            f"the reference ({'; '.join(sorted(names))})" if len(names) == 1 else "the references"
        )
        rows = list(table.rows)
    rows, tests = _correct(rows)
    if not tests:
        raise PlanError(
            "no differences: no run can be compared on the same prompts",
            hint="Name one of the runs: --baseline NAME. Or judge runs against a reference with"
            " scores of single samples.",
        )
    note = (
        f"paired with {name}, each prompt with itself; negative is worse; 95 % intervals,"
        f" two-sided; {tests} {'test' if tests == 1 else 'tests'} by Holm, two-sided"
    )
    return replace(table, rows=rows, notes=(note, *table.notes), against=name)


def _find(table: ResultsTable, name: str) -> DeploymentRow:
    """Return the row of a name: its label, the name of its run, or one of its run folders."""
    place = Path(name)
    found = [
        row
        for row in table.rows
        if name in (table.label(row), row.attributes.get(RUN))
        or any(
            cell is not None
            and cell.run
            and (Path(cell.run).name == name or Path(cell.run) == place)
            for cell in row.cells
        )
    ]
    if len(found) != 1:
        names = ", ".join(table.label(row) for row in table.rows)
        said = "several rows have" if found else "no row has"
        raise PlanError(f"--baseline: {said} the name {name!r}", hint=f"Rows: {names}.")
    return found[0]


def _compare(
    row: DeploymentRow, baseline: DeploymentRow, columns: Sequence[TaskColumn]
) -> DeploymentRow:
    pairs = zip(columns, row.cells, baseline.cells, strict=True)
    cells = [None if cell is None else _pair(column.task, cell, had) for column, cell, had in pairs]
    return replace(row, cells=cells)


def _pair(task: str, cell: ResultCell, had: ResultCell | None) -> ResultCell:
    """Return a cell with its difference from another on the same prompts, or with none.

    What was found against the registered reference is left out.
    """
    bare = replace(
        cell,
        reference=None if had is None else had.value,
        difference=None,
        difference_interval=None,
        p=None,
        p_rise=None,
        p_holm=None,
        q=None,
        finding="",
        proven="",
    )
    if had is None or had.value is None or cell.value is None:
        return bare
    from serve_eval.stats.judgement import judge

    try:
        a, b = (read_task(Path(one.run), read_report(Path(one.run)), task) for one in (had, cell))
        if {a.task.result.aggregation, b.task.result.aggregation} != {MEAN.name}:
            return bare
        told = judge(score_pairs(a, b), margin=0.0)
        turned = judge(score_pairs(b, a), margin=0.0)
    except (RunFolderError, ServeEvalError):
        return bare
    scale = a.task.result.metric.scale
    ends = told.interval.lower, told.interval.upper
    finite = all(abs(end) != float("inf") for end in ends)
    return replace(
        bare,
        difference=scale * told.test.mean,
        difference_interval=(scale * ends[0], scale * ends[1]) if finite else None,
        p=told.test.p,
        p_rise=turned.test.p,
    )


def _correct(rows: list[DeploymentRow]) -> tuple[list[DeploymentRow], int]:
    """Return the rows with stars, and the number of tests.

    Twice the smaller p of both directions is two-sided. The interval must exclude 0 as well, since
    it holds missing answers at their best and worst.
    """
    tested = list(_list_p(rows))
    adjusted = iter(holm(tested))
    found = []
    for row in rows:
        cells = []
        for cell in row.cells:
            if cell is not None and _is_tested(cell):
                p = next(adjusted)
                cell = replace(cell, p_table=p, star=p <= ALPHA and _excludes_zero(cell))
            cells.append(cell)
        found.append(replace(row, cells=cells))
    return found, len(tested)


def _list_p(rows: list[DeploymentRow]) -> Iterator[float]:
    for row in rows:
        for cell in row.cells:
            if cell is not None and _is_tested(cell):
                ends = [p for p in (cell.p, cell.p_rise) if p is not None]
                yield min(1.0, 2.0 * min(ends))


def _is_tested(cell: ResultCell) -> bool:
    return cell.difference is not None and cell.p is not None


def _excludes_zero(cell: ResultCell) -> bool:
    ends = cell.difference_interval
    return ends is not None and (ends[0] > 0.0 or ends[1] < 0.0)
