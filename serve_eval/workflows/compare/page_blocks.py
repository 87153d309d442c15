"""Make what only the page of a comparison shows: who was right where, and both answers."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

from serve_eval.plugins.scope import with_scope
from serve_eval.report.page.breakdown import show_breakdown
from serve_eval.report.page.chosen_rows import MISSING, SIDES
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    PictureSection,
    Section,
)
from serve_eval.report.page.sample_data import PageTask, SampleData
from serve_eval.report.page.samples_section import show_samples
from serve_eval.report.page.settings import contrast_settings
from serve_eval.report.pictures.compare_pictures import draw_compared, draw_graded, draw_times
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.run.conclusions import choose_lead, name_pictures, picture_tasks
from serve_eval.report.samples.known import KnownTask, know_task
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import ComparedTask, Comparison, Plan, Report
from serve_eval.storage import run_folder
from serve_eval.storage.records.scores import read_values
from serve_eval.storage.reports.report_file import find_report
from serve_eval.storage.reports.story_results import locate_runs
from serve_eval.workflows.compare.rows import (
    summarise_compared,
)


@with_scope
def list_page_blocks(
    comparison: Comparison, out_dir: Path, include_path: Sequence[str], most: int | None
) -> list[Section]:
    """Return what only the page shows.

    `most` is the number of answers of a side that are shown (None: as B's plan says).
    """
    return [*_list_sections(comparison, out_dir, include_path, most)]


def _list_sections(
    comparison: Comparison, out_dir: Path, include_path: Sequence[str], most: int | None
) -> Iterator[Section]:
    tasks, several = comparison.tasks, len(comparison.tasks) > 1
    summaries = list(map(summarise_compared, tasks))
    folders = dict(locate_runs(out_dir))
    reports = {label: find_report(folder) for label, folder in folders.items()}
    plans = {label: run_folder.read_plan(folder) for label, folder in folders.items()}
    opened = [_open_task(one, folders, plans, reports["B"], include_path) for one in tasks]
    most = plans["B"].limits.page_samples if most is None else most
    data = SampleData(opened, out_dir, most=most)
    drawn = [one for task in tasks for one in _draw(task, folders, data)]
    lead = None if several else choose_lead(drawn, paired=True)
    if lead is not None:
        yield PictureSection(title="What decides", pictures=[lead])
    elif pictures := list(picture_tasks(summaries)):
        yield PictureSection(title="Values", pictures=pictures)
    for task in tasks:
        yield _cross(task.task, data, several=several)
    if (samples := show_samples(data)) is not None:
        yield samples
    if others := [one for one in drawn if one is not lead]:
        yield PictureSection(title=name_pictures(others), pictures=others, closed=True)
    for summary in summaries:
        facts = data.known[summary.result.task]
        yield from show_breakdown(summary, facts.fields if facts else (), several=several)
    a, b = (_list_settings(folders[label], reports[label]) for label in "AB")
    yield contrast_settings("Settings of A and B", a, b)


def _draw(task: ComparedTask, folders: Mapping[str, Path], data: SampleData) -> Iterator[Picture]:
    """Yield the pictures of a task: the change, graded scores, and the times of both sides."""
    yield from draw_compared(task)
    sides = [data.indexes[task.task][label] for label in "AB"]
    if not frozenset[float]().union(*(one.values for one in sides)) <= {
        task.a.metric.lo,
        task.a.metric.hi,
    }:
        yield from draw_graded(task, *(read_values(folders[label], task.task) for label in "AB"))
    yield from draw_times(task.task, *(one.drawn for one in sides))


def _know(
    task: str, report: Report | None, include_path: Sequence[str], wanted: Container[str]
) -> KnownTask | None:
    """Return what the data set adds to samples, or None if it is not on this machine."""
    found = [] if report is None else [one for one in report.tasks if one.result.task == task]
    if report is None or not found:
        return None
    return know_task(report.plan, found[0].spec, None, include_path, wanted)


def _open_task(
    task: ComparedTask,
    folders: Mapping[str, Path],
    plans: Mapping[str, Plan],
    report: Report | None,
    include_path: Sequence[str],
) -> PageTask:
    name = task.task
    return PageTask(
        name=name,
        arms={
            label: SampleSource(run=folder, task=name, repeated=plans[label].times(name) > 1)
            for label, folder in folders.items()
        },
        metric=task.b.metric,
        know=lambda wanted: _know(name, report, include_path, wanted),
        url="" if report is None else report.endpoint.base_url,
        key="" if report is None else report.plan.connection.api_key_env,
    )


def _cross(task: str, data: SampleData, *, several: bool) -> DataTable:
    """Return the table of the first answers of A and B; a cell leads to its samples."""
    counts = data.count_sides(task)
    shown = [
        one
        for one in SIDES
        if one != MISSING or any(n for pair, n in counts.items() if MISSING in pair)
    ]
    rows = [
        [
            DataCell(text=f"A {a}"),
            *(
                DataCell(
                    text=f"{counts[a, b]:,}",
                    order=counts[a, b],
                    href=f"#{urlencode({'task': task, 'a': a, 'b': b})}" if counts[a, b] else "",
                )
                for b in shown
            ),
        ]
        for a in shown
    ]
    return DataTable(
        title=f"{task}: A and B" if several else "A and B",
        columns=[
            DataColumn(name="first answers"),
            *(DataColumn(name=f"B {b}", number=True) for b in shown),
        ],
        rows=rows,
        caption="Prompts by the first answers of both. A number shows its samples below.",
    )


def _list_settings(folder: Path, report: Report | None) -> Mapping[str, object]:
    """Return what may differ between two runs."""
    if report is None:
        return {"plan": run_folder.read_plan(folder)}
    return {
        "plan": report.plan,
        "endpoint": report.endpoint,
        "environment": report.environment,
        "protocol": {one.result.task: one.fingerprint for one in report.tasks},
    }
