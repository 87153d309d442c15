"""Write a table of deployments by tasks as text, CSV, Markdown, LaTeX and SVG."""

from serve_eval.report.results_table.cell import ResultCell
from serve_eval.report.results_table.content import (
    DeploymentRow,
    ResultsTable,
    TaskColumn,
    show_differences,
)
from serve_eval.report.results_table.fitted import write_text
from serve_eval.report.results_table.formats import FORMATS, write_table

__all__ = [
    "FORMATS",
    "DeploymentRow",
    "ResultCell",
    "ResultsTable",
    "TaskColumn",
    "show_differences",
    "write_table",
    "write_text",
]
