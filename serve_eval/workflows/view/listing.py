"""List the runs of a folder, as a table with links or two side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from serve_eval import __version__
from serve_eval.errors import RunFolderError
from serve_eval.frozen import freeze
from serve_eval.report.document import rank_outcome
from serve_eval.report.page.chosen import match_slices
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    PageContent,
    PictureSection,
    Section,
)
from serve_eval.report.page.tables import contrast_settings
from serve_eval.report.pictures import Picture, draw_against
from serve_eval.report.pictures.picture import count
from serve_eval.report.summary import summarise_task
from serve_eval.report.summary.figures import add_sign, change, figure, show_value, span
from serve_eval.schema import TaskReport
from serve_eval.series.read_runs import FinishedRun
from serve_eval.shell_words import join_words
from serve_eval.storage.file_names import PAGE_FILE
from serve_eval.storage.scores import has_scores, read_values
from serve_eval.verdicts.references import spec_text
from serve_eval.workflows.view.overview import FAIL, PASS, UNJUDGED, Ending, SeriesEnd, state_of

COMPARE = "compare"
"""The path of the page that shows two runs."""


@freeze
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
        DataColumn("began (UTC)"),
        DataColumn("task"),
        DataColumn("verdict"),
        DataColumn("value", number=True),
        DataColumn("95 %", number=True),
        DataColumn("change", number=True, note="value minus reference"),
        DataColumn("model"),
        DataColumn("specification"),
        DataColumn("run"),
        DataColumn("part of", note="the command of whose result the run is a part"),
    ]
    if links.served:
        columns.append(DataColumn("compare", note="this run as the baseline"))
    ordered = sorted(runs, key=lambda run: (run.began, str(run.folder)), reverse=True)
    rows = [_row(run, task, links) for run in ordered for task in run.report.tasks]
    return DataTable("Runs", columns=columns, rows=rows, caption="The latest run first.")


def _row(run: FinishedRun, task: TaskReport, links: Links) -> list[DataCell]:
    one, metric = summarise_task(task), task.result.metric
    value, interval, fall = show_value(one), task.result.interval, change(one)
    outcome, plan = run.find_outcome(task), run.report.plan
    page = links.to_page(run.folder)
    cells = [
        DataCell(show_date(run), order=run.began.timestamp(), href=page),
        DataCell(task.result.task),
        (
            DataCell("REHEARSAL", state="none")
            if run.report.rehearsal
            else DataCell(run.describe_outcome(task), state=state_of(outcome.value))
        ),
        DataCell(value, order=task.result.value),
        DataCell("-" if interval is None else span(interval, metric)),
        DataCell("-" if fall is None else add_sign(fall, metric), order=fall),
        DataCell(plan.model or run.report.endpoint.base_url),
        DataCell(spec_text(plan.accuracy_spec)),
        DataCell(links.name(run.folder)),
        DataCell(run.part_of or "-"),
    ]
    if links.served:
        cells.append(DataCell("compare with ...", href=links.to_compare(run.folder)))
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
    columns = [DataColumn("series")]
    for i, night in enumerate(nights):
        begins = i == 0 or night.month != nights[i - 1].month
        columns.append(DataColumn(f"{night:%m-%d}" if begins else f"{night:%d}", note=str(night)))
    return DataTable(
        f"Verdicts of the last {count(len(nights), 'night')}",
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
    cells = [DataCell(one.name)]
    for night in nights:
        if (ending := worst.get(night)) is None:
            cells.append(DataCell("", order=float(len(nights) + 100)))
            continue
        several = sum(each.night == night for each in one.endings)
        more = f"; the worst of {several} that night" if several > 1 else ""
        figures = f" {ending.compared}" if ending.compared else ""
        cells.append(
            DataCell(
                _mark(ending)[0],
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


MOST_PICTURES = 6


def make_choice(runs: Sequence[FinishedRun], a: FinishedRun, links: Links) -> PageContent:
    """Return the page that offers the runs to compare with a baseline, the likeliest first."""
    tasks = {task.result.task for task in a.report.tasks}

    def differs(run: FinishedRun) -> int:
        shared = tasks & {task.result.task for task in run.report.tasks}
        return (not shared) + (run.report.plan.model != a.report.plan.model)

    others = sorted(
        (run for run in runs if run.folder != a.folder),
        key=lambda run: (differs(run), -run.began.timestamp(), str(run.folder)),
    )
    rows = [
        [
            DataCell(links.name(run.folder), href=links.to_compare(a.folder, run.folder)),
            DataCell(show_date(run), order=run.began.timestamp()),
            DataCell(run.report.plan.model or "-"),
            DataCell(describe_run(run)),
        ]
        for run in others
    ]
    columns = [DataColumn(name) for name in ("run", "began (UTC)", "model", "tasks")]
    return PageContent(
        kind="runs view",
        title=f"Compare {links.name(a.folder)} with",
        heading=f"compare {links.name(a.folder)} with ...",
        state="none",
        badge="BASELINE",
        headline=f"{links.name(a.folder)}: {describe_run(a)}",
        rows=[Fact("all runs", "back to the table", href=".")],
        sections=(DataTable("Choose the second run", columns=columns, rows=rows),),
        foot=f"serve-eval {__version__}",
    )


def make_side_by_side(a: FinishedRun, b: FinishedRun, links: Links) -> PageContent:
    """Return the page of two runs, with `a` as the baseline."""
    pairs = _pair(a, b)
    changed = [_count_changes(a, b, left.result.task) for left, _ in pairs]
    worse = sum(one[0] for one in changed if one is not None)
    better = sum(one[1] for one in changed if one is not None)
    names = links.name(a.folder), links.name(b.folder)
    command = join_words(["serve-eval", "compare", str(a.folder), str(b.folder)])
    return PageContent(
        kind="runs view",
        title=f"{names[0]} and {names[1]}",
        heading=f"{names[0]} and {names[1]}",
        state="none",
        badge="A AND B",
        headline=(
            f"{count(len(pairs), 'shared task')}; {count(worse, 'answer')} with a lower score in B,"
            f" {better:,} with a higher one"
        ),
        rows=[
            Fact("A", f"{names[0]}, {show_date(a)}", href=links.to_page(a.folder)),
            Fact("B", f"{names[1]}, {show_date(b)}", href=links.to_page(b.folder)),
            Fact("verdict", f"this page does not judge; to judge: {command}"),
            Fact("swap", "B as the baseline", href=links.to_compare(b.folder, a.folder)),
            Fact("all runs", "back to the table", href="."),
        ],
        sections=tuple(_list_sections(a, b, pairs, changed)),
        foot=f"serve-eval {__version__}",
    )


def _pair(a: FinishedRun, b: FinishedRun) -> list[tuple[TaskReport, TaskReport]]:
    second = {task.result.task: task for task in b.report.tasks}
    return [
        (task, second[task.result.task]) for task in a.report.tasks if task.result.task in second
    ]


def _count_changes(a: FinishedRun, b: FinishedRun, task: str) -> tuple[int, int, int] | None:
    """Return how many prompts scored lower in B, higher, and were scored in both.

    None if a run keeps no scores of the task.
    """
    if not (has_scores(a.folder, task) and has_scores(b.folder, task)):
        return None
    try:
        left, right = read_values(a.folder, task), read_values(b.folder, task)
    except RunFolderError:
        return None
    both = left.keys() & right.keys()
    worse = sum(right[name] < left[name] for name in both)
    better = sum(right[name] > left[name] for name in both)
    return worse, better, len(both)


def _list_sections(
    a: FinishedRun,
    b: FinishedRun,
    pairs: Sequence[tuple[TaskReport, TaskReport]],
    changed: Sequence[tuple[int, int, int] | None],
) -> Iterator[Section]:
    yield _tabulate(pairs, changed)
    if pictures := list(_draw(pairs)):
        yield PictureSection("Breakdown", pictures)
    yield contrast_settings("Settings", a.report.plan, b.report.plan)
    yield contrast_settings(
        "Endpoint and machine",
        {"endpoint": a.report.endpoint, "environment": a.report.environment},
        {"endpoint": b.report.endpoint, "environment": b.report.environment},
    )


def _tabulate(
    pairs: Sequence[tuple[TaskReport, TaskReport]],
    changed: Sequence[tuple[int, int, int] | None],
) -> DataTable:
    columns = [
        DataColumn("task"),
        *(DataColumn(name, number=True) for name in ("A", "B", "B minus A")),
        DataColumn("lower in B", number=True, note="prompts whose score is lower in B"),
        DataColumn("higher in B", number=True, note="prompts whose score is higher in B"),
        DataColumn("in both", number=True, note="prompts with a score in both runs"),
        *(DataColumn(name) for name in ("verdict A", "verdict B")),
    ]
    rows = []
    for (left, right), counts in zip(pairs, changed, strict=True):
        values = left.result.value, right.result.value
        known = values[0] is not None and values[1] is not None
        fall = (values[1] or 0.0) - (values[0] or 0.0) if known else math.nan
        told = ("-", "-", "-") if counts is None else tuple(f"{n:,}" for n in counts)
        rows.append(
            [
                DataCell(left.result.task),
                DataCell(_show(left), order=values[0]),
                DataCell(_show(right), order=values[1]),
                DataCell(
                    add_sign(fall, left.result.metric) if known else "-",
                    order=fall if known else None,
                ),
                *(DataCell(text) for text in told),
                *(
                    DataCell(one.verdict.outcome.value, state=state_of(one.verdict.outcome.value))
                    for one in (left, right)
                ),
            ]
        )
    return DataTable("Tasks", columns=columns, rows=rows, caption="A is the baseline.")


def _show(task: TaskReport) -> str:
    value, interval = show_value(summarise_task(task)), task.result.interval
    return value if interval is None else f"{value} ({span(interval, task.result.metric)})"


def _draw(pairs: Sequence[tuple[TaskReport, TaskReport]]) -> Iterator[Picture]:
    """Yield a picture of each field of the breakdown that both runs have."""
    drawn = 0
    for left, right in pairs:
        for field, table in left.result.breakdown.items():
            points = list(match_slices(table, right.result.breakdown.get(field)))
            title = f"{left.result.task}: A against B by {field}"
            if len(points) > 1 and (made := draw_against(title, points, ("A", "B"))) is not None:
                yield made
                if (drawn := drawn + 1) >= MOST_PICTURES:
                    return
