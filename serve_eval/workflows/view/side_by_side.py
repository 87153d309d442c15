"""Make the page of two runs: the baseline on the left, and the settings that differ marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from serve_eval import __version__
from serve_eval.errors import RunFolderError
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
from serve_eval.report.pictures.chosen_pictures import match_slices
from serve_eval.report.pictures.picture import count
from serve_eval.report.summary import summarise_task
from serve_eval.report.summary.figures import add_sign, show_value, span
from serve_eval.schema import TaskReport
from serve_eval.series.read_runs import FinishedRun
from serve_eval.shell_words import join_words
from serve_eval.storage.records.scores import has_scores, read_values
from serve_eval.workflows.view.listing import Links, describe_run, show_date
from serve_eval.workflows.view.overview import state_of

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
            DataCell(text=links.name(run.folder), href=links.to_compare(a.folder, run.folder)),
            DataCell(text=show_date(run), order=run.began.timestamp()),
            DataCell(text=run.report.plan.model or "-"),
            DataCell(text=describe_run(run)),
        ]
        for run in others
    ]
    columns = [DataColumn(name=name) for name in ("run", "began (UTC)", "model", "tasks")]
    return PageContent(
        kind="runs view",
        title=f"Compare {links.name(a.folder)} with",
        heading=f"compare {links.name(a.folder)} with ...",
        state="none",
        badge="BASELINE",
        headline=f"{links.name(a.folder)}: {describe_run(a)}",
        rows=[Fact(label="all runs", text="back to the table", href=".")],
        sections=(DataTable(title="Choose the second run", columns=columns, rows=rows),),
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
            Fact(label="A", text=f"{names[0]}, {show_date(a)}", href=links.to_page(a.folder)),
            Fact(label="B", text=f"{names[1]}, {show_date(b)}", href=links.to_page(b.folder)),
            Fact(label="verdict", text=f"this page does not judge; to judge: {command}"),
            Fact(label="swap", text="B as the baseline", href=links.to_compare(b.folder, a.folder)),
            Fact(label="all runs", text="back to the table", href="."),
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
        yield PictureSection(title="Breakdown", pictures=pictures)
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
        DataColumn(name="task"),
        *(DataColumn(name=name, number=True) for name in ("A", "B", "B minus A")),
        DataColumn(name="lower in B", number=True, note="prompts whose score is lower in B"),
        DataColumn(name="higher in B", number=True, note="prompts whose score is higher in B"),
        DataColumn(name="in both", number=True, note="prompts with a score in both runs"),
        *(DataColumn(name=name) for name in ("verdict A", "verdict B")),
    ]
    rows = []
    for (left, right), counts in zip(pairs, changed, strict=True):
        values = left.result.value, right.result.value
        known = values[0] is not None and values[1] is not None
        fall = (values[1] or 0.0) - (values[0] or 0.0) if known else math.nan
        told = ("-", "-", "-") if counts is None else tuple(f"{n:,}" for n in counts)
        rows.append(
            [
                DataCell(text=left.result.task),
                DataCell(text=_show(left), order=values[0]),
                DataCell(text=_show(right), order=values[1]),
                DataCell(
                    text=add_sign(fall, left.result.metric) if known else "-",
                    order=fall if known else None,
                ),
                *(DataCell(text=text) for text in told),
                *(
                    DataCell(
                        text=one.verdict.outcome.value, state=state_of(one.verdict.outcome.value)
                    )
                    for one in (left, right)
                ),
            ]
        )
    return DataTable(title="Tasks", columns=columns, rows=rows, caption="A is the baseline.")


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
