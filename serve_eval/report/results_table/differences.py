"""Turn a table of values into one of paired differences. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from serve_eval.report.results_table.cell import ResultCell
from serve_eval.report.results_table.content import ResultsTable


def show_differences(table: ResultsTable) -> ResultsTable:
    """Return a table of differences with these in place of the values.

    A table of values, which names no baseline, stays as it is.
    """
    if not table.against:
        return table
    rows = [
        replace(row, cells=[None if cell is None else _turn(cell) for cell in row.cells])
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _turn(cell: ResultCell) -> ResultCell:
    direction: Literal["drop", "rise"] = "drop" if (cell.difference or 0.0) < 0.0 else "rise"
    return replace(
        cell,
        value=cell.difference,
        interval=cell.difference_interval,
        proven=direction if cell.star else "",
        waived=False,
        signed=True,
    )
