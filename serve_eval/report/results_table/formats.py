"""Name the formats of a table of deployments by tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from serve_eval.report.results_table.content import ResultsTable
from serve_eval.report.results_table.csv_file import write_csv_table
from serve_eval.report.results_table.differences import show_differences
from serve_eval.report.results_table.latex import write_latex
from serve_eval.report.results_table.markdown import write_markdown_table
from serve_eval.report.results_table.svg import write_svg
from serve_eval.report.results_table.text import write_text

_WRITERS: Final[Mapping[str, Callable[[ResultsTable], str]]] = {
    "table": write_text,
    "csv": write_csv_table,
    "markdown": write_markdown_table,
    "latex": write_latex,
    "svg": write_svg,
}
FORMATS = tuple(_WRITERS)


def write_table(table: ResultsTable, name: str) -> str:
    """Return a table in the format of a name of FORMATS. CSV has values and differences."""
    return _WRITERS[name](table if name == "csv" else show_differences(table))
