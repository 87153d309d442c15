"""List the runs of a folder as a table with links, and as a map of nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from serve_eval.report.document import rank_outcome
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.pictures.picture import count
from serve_eval.report.summary import summarise_task
from serve_eval.report.summary.figures import add_sign, change, figure, show_value, span
from serve_eval.schema import TaskReport
from serve_eval.series.read_runs import FinishedRun
from serve_eval.storage.file_names import PAGE_FILE
from serve_eval.verdicts.references import spec_text
from serve_eval.workflows.view.overview import FAIL, PASS, UNJUDGED, Ending, SeriesEnd, state_of

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
        DataCell(text=show_date(run), order=run.began.timestamp(), href=page),
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


def show_date(run: FinishedRun) -> str:
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


NIGHTS, LETTERED = 30, 7
"""Nights of the map, and of the letters that a terminal shows."""
_MARKS: Final = {PASS: ("✓", "P"), FAIL: ("✗", "F"), "ERROR": ("!", "E"), "KILLED": ("!", "E")}
_UNJUDGED: Final = ("·", ".")
_UNDECIDED: Final = ("?", "?")
LEGEND = (
    "P passed, F failed, E error or killed, ? undecided, . not judged, - nothing; the newest on"
    " the right."
)
"""The letters of a terminal, in words."""


def list_nights(ends: Sequence[SeriesEnd], most: int = NIGHTS) -> list[date]:
    """Return the last dates (UTC) on which something ended, oldest first."""
    return sorted({ending.night for one in ends for ending in one.endings})[-most:]


def write_letters(one: SeriesEnd, nights: Sequence[date]) -> str:
    """Return a letter for each night, and "-" for one without a run."""
    worst = _find_worst(one)
    return "".join(_mark(worst[night])[1] if night in worst else "-" for night in nights)


def draw_map(ends: Sequence[SeriesEnd], links: Links) -> DataTable:
    """Return the map: each cell has the worst verdict of a night and leads to its page."""
    nights = list_nights(ends)
    columns = [DataColumn(name="series")]
    for i, night in enumerate(nights):
        begins = i == 0 or night.month != nights[i - 1].month
        columns.append(
            DataColumn(name=f"{night:%m-%d}" if begins else f"{night:%d}", note=str(night))
        )
    return DataTable(
        title=f"Verdicts of the last {count(len(nights), 'night')}",
        columns=columns,
        rows=[_draw_row(one, nights, links) for one in ends],
        caption=(
            "✓ passed, ✗ failed, ! error or killed, ? undecided, · not judged: the worst of each"
            " night (UTC), the newest on the right. A mark leads to the page of its result. A"
            " narrow screen scrolls the map sideways."
        ),
        marks=True,
    )


def _draw_row(one: SeriesEnd, nights: Sequence[date], links: Links) -> list[DataCell]:
    worst = _find_worst(one)
    cells = [DataCell(text=one.name)]
    for night in nights:
        if (ending := worst.get(night)) is None:
            cells.append(DataCell(text="", order=float(len(nights) + 100)))
            continue
        several = sum(each.night == night for each in one.endings)
        more = f"; the worst of {several} that night" if several > 1 else ""
        figures = f" {ending.compared}" if ending.compared else ""
        cells.append(
            DataCell(
                text=_mark(ending)[0],
                order=float(rank_outcome(ending.outcome)),
                href=links.to_page(ending.folder),
                state=state_of(ending.outcome),
                note=f"{ending.when} {ending.outcome}{figures}{more}",
            )
        )
    return cells


def _find_worst(one: SeriesEnd) -> dict[date, Ending]:
    """Return the worst ending of each night, of equal ones the latest."""
    worst: dict[date, Ending] = {}
    for ending in one.endings:
        known = worst.get(ending.night)
        if known is None or rank_outcome(ending.outcome) <= rank_outcome(known.outcome):
            worst[ending.night] = ending
    return worst


def _mark(ending: Ending) -> tuple[str, str]:
    return _MARKS.get(ending.outcome, _UNJUDGED if ending.outcome in UNJUDGED else _UNDECIDED)
