"""Correct the differences of a table for its many tests, and mark the proven ones. Pure."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.report.results_table import DeploymentRow, ResultCell
from serve_eval.stats.multiplicity import holm

ALPHA = 0.05
"""Probability of any false star in a table."""


def add_stars(rows: list[DeploymentRow]) -> tuple[list[DeploymentRow], int]:
    """Return the rows with stars, and the number of tests.

    Twice the smaller p of both directions is two-sided. The interval must exclude 0 as well, since
    it holds missing answers at their best and worst. The same answers in a copy of a run are one
    test.
    """
    tested = [one for row in rows for one in row.cells if one is not None and _is_tested(one)]
    alone = {one.answered or str(i): _find_p(one) for i, one in enumerate(tested)}
    adjusted = dict(zip(alone, holm(list(alone.values())), strict=True))
    names = (one.answered or str(i) for i, one in enumerate(tested))
    found = []
    for row in rows:
        cells = []
        for cell in row.cells:
            if cell is not None and _is_tested(cell):
                p = adjusted[next(names)]
                cell = replace(cell, p_table=p, star=p <= ALPHA and _excludes_zero(cell))
            cells.append(cell)
        found.append(replace(row, cells=cells))
    return found, len(alone)


def _find_p(cell: ResultCell) -> float:
    return min(1.0, 2.0 * min(p for p in (cell.p, cell.p_rise) if p is not None))


def _is_tested(cell: ResultCell) -> bool:
    return cell.difference is not None and cell.p is not None


def _excludes_zero(cell: ResultCell) -> bool:
    ends = cell.difference_interval
    return ends is not None and (ends[0] > 0.0 or ends[1] < 0.0)
