"""Print the summary of a run: the verdict, what is behind it, and what to do next."""

from serve_eval.report.summary.figures import SummaryTask, summarise_task, summarise_tasks
from serve_eval.report.summary.headline import badge, style_of
from serve_eval.report.summary.rows import (
    Row,
    brief,
    describe_answers,
    name_expected,
    rows_of,
)
from serve_eval.report.text import join_row, print_rows

__all__ = [
    "Row",
    "SummaryTask",
    "badge",
    "brief",
    "describe_answers",
    "join_row",
    "name_expected",
    "print_rows",
    "rows_of",
    "style_of",
    "summarise_task",
    "summarise_tasks",
]
