"""Tables of verdicts never cut a figure, at any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import fit_tables

NAMES = ("task", "n", "A", "B", "verdict")
ROWS = (
    ("lm_eval:a_task_of_a_long_name", "14042", "100.000", "99.125", "INCONCLUSIVE"),
    ("gsm8k", "80", "7.500", "8.250", "PASS"),
)


@pytest.mark.parametrize(("width", "lines"), [(120, 3), (48, 10)])
def test_a_table_that_does_not_fit_is_turned_and_never_cut(width: int, lines: int) -> None:
    out = io.StringIO()
    cells = [[Text(cell) for cell in row] for row in ROWS]
    Console(file=out, width=width).print(*fit_tables(NAMES, cells, width), sep="\n\n")
    assert set(out.getvalue().split()) == {*NAMES, *(cell for row in ROWS for cell in row)}
    assert len(out.getvalue().splitlines()) == lines
