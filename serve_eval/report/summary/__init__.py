"""Print the summary of a run: the verdict, what is behind it, and what to do next."""

from serve_eval.report.summary.headline import badge, style_of
from serve_eval.report.summary.print_rows import print_commands, print_rows
from serve_eval.report.summary.print_summary import print_summary, print_table_of_runs, print_tasks
from serve_eval.report.summary.rows import Row, brief, name_expected
from serve_eval.report.summary.summary_task import SummaryTask

__all__ = [
    "Row",
    "SummaryTask",
    "badge",
    "brief",
    "name_expected",
    "print_commands",
    "print_rows",
    "print_summary",
    "print_table_of_runs",
    "print_tasks",
    "style_of",
]
