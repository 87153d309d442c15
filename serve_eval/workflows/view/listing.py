"""List the tasks of the finished runs of a folder, the latest first, with links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from urllib.parse import quote, urlencode

from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.summary import summarise_task
from serve_eval.report.summary.figures import add_sign, change, figure, show_value, span
from serve_eval.schema import TaskReport
from serve_eval.series.read_runs import FinishedRun
from serve_eval.storage.file_names import PAGE_FILE
from serve_eval.verdicts.references import spec_text
from serve_eval.workflows.view.overview import state_of

COMPARE = "compare"
"""The path of the page that shows two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of an index: the folder that paths are relative to, and if a server answers.

    `at` is the path from the page to that folder, with a slash at its end; "" if it is there.
    """

    folder: Path
    served: bool
    at: str = ""

    def name(self, run: Path) -> str:
        """Return the path of a run folder relative to the served folder."""
        return "." if run == self.folder else run.relative_to(self.folder).as_posix()

    def to_page(self, run: Path) -> str:
        """Return the link to the page of a run, or "" if there is no page."""
        if not (run / PAGE_FILE).is_file():
            return ""
        name = self.name(run)
        return self.at + quote(PAGE_FILE if name == "." else f"{name}/{PAGE_FILE}")

    def to_compare(self, a: Path, b: Path | None = None) -> str:
        """Return the link to two runs, or to the choice of the second one."""
        if not self.served:
            return ""
        chosen = {"a": self.name(a), **({} if b is None else {"b": self.name(b)})}
        return f"{COMPARE}?{urlencode(chosen)}"


def tabulate_runs(runs: Sequence[FinishedRun], links: Links) -> DataTable:
    """Return the table of all tasks, the latest run first."""
    columns = [
        DataColumn(name="began (UTC)"),
        DataColumn(name="task"),
        DataColumn(name="verdict"),
        DataColumn(name="value", number=True),
        DataColumn(name="95 %", number=True),
        DataColumn(name="change", number=True, note="value minus reference"),
        DataColumn(name="model"),
        DataColumn(name="specification"),
        DataColumn(name="run"),
        DataColumn(name="part of", note="the command of whose result the run is a part"),
    ]
    if links.served:
        columns.append(DataColumn(name="compare", note="this run as the baseline"))
    ordered = sorted(runs, key=lambda run: (run.began, str(run.folder)), reverse=True)
    rows = [_row(run, task, links) for run in ordered for task in run.report.tasks]
    return DataTable(title="Runs", columns=columns, rows=rows, caption="The latest run first.")


def _row(run: FinishedRun, task: TaskReport, links: Links) -> list[DataCell]:
    one, metric = summarise_task(task), task.result.metric
    value, interval, fall = show_value(one), task.result.interval, change(one)
    outcome, plan = run.find_outcome(task), run.report.plan
    page = links.to_page(run.folder)
    cells = [
        DataCell(text=date(run), order=run.began.timestamp(), href=page),
        DataCell(text=task.result.task),
        (
            DataCell(text="REHEARSAL", state="none")
            if run.report.rehearsal
            else DataCell(text=run.describe_outcome(task), state=state_of(outcome.value))
        ),
        DataCell(text=value, order=task.result.value),
        DataCell(text="-" if interval is None else span(interval, metric)),
        DataCell(text="-" if fall is None else add_sign(fall, metric), order=fall),
        DataCell(text=plan.model or run.report.endpoint.base_url),
        DataCell(text=spec_text(plan.accuracy_spec)),
        DataCell(text=links.name(run.folder)),
        DataCell(text=run.part_of or "-"),
    ]
    if links.served:
        cells.append(DataCell(text="compare with ...", href=links.to_compare(run.folder)))
    return cells


def date(run: FinishedRun) -> str:
    """Return when a run began, to the minute, in UTC."""
    return f"{run.began.astimezone(UTC):%Y-%m-%d %H:%M}"


def describe_run(run: FinishedRun) -> str:
    """Return the tasks, values and verdicts of a run in a few words."""
    parts = []
    for task in run.report.tasks:
        value = task.result.value
        shown = "-" if value is None else figure(value, task.result.metric)
        parts.append(f"{task.result.task} {shown} {run.describe_outcome(task)}")
    return ", ".join(parts)
