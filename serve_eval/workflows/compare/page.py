"""Make the page of a comparison: the verdict, who was right where, both answers to each prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

from serve_eval import __version__
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.file_names import PAGE_FILE
from serve_eval.evaluation.storage.records.scores import read_values
from serve_eval.evaluation.storage.reports.comparison_files import locate_runs
from serve_eval.evaluation.storage.reports.report_file import find_report
from serve_eval.plugins.scope import with_scope
from serve_eval.report.page.breakdown import show_breakdown
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Facts,
    PageContent,
    PictureSection,
    Section,
)
from serve_eval.report.page.sample_data import MISSING, WRONG, PageTask, SampleData
from serve_eval.report.page.samples_section import show_samples
from serve_eval.report.page.settings import contrast_settings
from serve_eval.report.page.verdict import (
    make_facts,
    make_first_line,
    picture_tasks,
    rule_task,
    tabulate_tasks,
)
from serve_eval.report.page.writer import save_page
from serve_eval.report.pictures.compare_pictures import draw_compared, draw_graded, draw_times
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.pictures.run_pictures import read_drawn
from serve_eval.report.samples.known import KnownTask, know_task
from serve_eval.report.samples.samples import RIGHT, SampleSource
from serve_eval.report.summary import Row, rows_of
from serve_eval.schema import REHEARSED, ComparedTask, Comparison, Report
from serve_eval.workflows.compare.rows import (
    describe_service,
    describe_sides,
    describe_task,
    list_warnings,
    summarise_compared,
)

SIDES = (RIGHT, WRONG, MISSING)


def write_comparison_page(
    comparison: Comparison,
    out_dir: Path,
    slices: Sequence[str] = (),
    *,
    include_path: Sequence[str] = (),
    notify: Callable[[str], object] = lambda line: None,
) -> Path:
    """Write the page into the comparison's folder and return its path.

    `slices` are sentences about where B lost its score; `notify` gets a warning if the pictures
    could not be drawn. Raises RunFolderError if it cannot be
    written.
    """
    path = out_dir / PAGE_FILE
    content = make_comparison_page(comparison, out_dir, slices, include_path=include_path)
    save_page(content, path, notify)
    return path


@with_scope
def make_comparison_page(
    comparison: Comparison,
    out_dir: Path,
    slices: Sequence[str] = (),
    *,
    include_path: Sequence[str] = (),
) -> PageContent:
    """Return the page of a comparison."""
    tasks = list(map(summarise_compared, comparison.tasks))
    first, alone = make_first_line(tasks), len(tasks) == 1
    facts = []
    if alone:
        [task] = comparison.tasks
        facts = make_facts([*rows_of(tasks[0]), *_list_rows(task)], task.task)
    only = f"{comparison.tasks[0].task}: " if alone else ""
    rows = [
        *(("where", line.removeprefix(only)) for line in slices),
        *describe_sides(comparison),
        *(("warning", line) for line in list_warnings(comparison)),
        ("folder", str(out_dir)),
    ]
    return PageContent(
        notice=REHEARSED if comparison.rehearsal else "",
        kind="compare",
        title=", ".join(f"{one.task}: {one.verdict.outcome}" for one in comparison.tasks),
        heading=f"{comparison.b.model} (B) against {comparison.a.model} (A)",
        state=first.state,
        badge=first.badge,
        headline=first.text,
        ruler=rule_task(tasks[0]) if alone else None,
        rows=[*facts, *make_facts(rows)],
        sections=tuple(_list_sections(comparison, out_dir, include_path)),
        foot=f"serve-eval {__version__}, {comparison.started_at}",
    )


def _list_rows(task: ComparedTask) -> list[Row]:
    """Return what only a comparison knows of a task."""
    warnings = (("warning", warning) for warning in task.warnings)
    return [*describe_task(task), *describe_service(task), *warnings]


def _list_sections(
    comparison: Comparison, out_dir: Path, include_path: Sequence[str]
) -> Iterator[Section]:
    tasks, several = comparison.tasks, len(comparison.tasks) > 1
    summaries = list(map(summarise_compared, tasks))
    folders = dict(locate_runs(out_dir))
    reports = {label: find_report(folder) for label, folder in folders.items()}
    known = {one.task: _know(one.task, reports["B"], include_path) for one in tasks}
    opened = [_open_task(one, folders, known[one.task], reports["B"]) for one in tasks]
    data = SampleData(opened, out_dir)
    if several:
        yield tabulate_tasks(summaries)
        for summary, task in zip(summaries, tasks, strict=True):
            rows = [*rows_of(summary), *_list_rows(task)]
            yield Facts(title=task.task, rows=make_facts(rows, task.task))
    for task in tasks:
        yield _cross(task.task, data, several=several)
    drawn = list(picture_tasks(summaries))
    drawn += [one for task in tasks for one in _draw(task, folders)]
    if drawn:
        yield PictureSection(title="Pictures", pictures=drawn)
    for summary in summaries:
        facts = known[summary.result.task]
        yield from show_breakdown(summary, facts.fields if facts else (), several=several)
    if (samples := show_samples(data)) is not None:
        yield samples
    a, b = (_list_settings(folders[label], reports[label]) for label in "AB")
    yield contrast_settings("Settings of A and B", a, b)


def _draw(task: ComparedTask, folders: Mapping[str, Path]) -> Iterator[Picture]:
    """Yield the pictures of a task: the change, graded scores, and the times of both sides."""
    yield from draw_compared(task)
    a, b = (read_values(folders[label], task.task) for label in "AB")
    if (graded := draw_graded(task, a, b)) is not None:
        yield graded
    yield from draw_times(task.task, *(read_drawn(folders[label], task.task) for label in "AB"))


def _know(task: str, report: Report | None, include_path: Sequence[str]) -> KnownTask | None:
    """Return what the data set adds to a task, or None if it is not on this machine."""
    found = [] if report is None else [one for one in report.tasks if one.result.task == task]
    if report is None or not found:
        return None
    return know_task(report.plan, found[0].spec, None, include_path)


def _open_task(
    task: ComparedTask,
    folders: Mapping[str, Path],
    known: KnownTask | None,
    report: Report | None,
) -> PageTask:
    arms = {}
    for label, folder in folders.items():
        repeated = run_folder.read_plan(folder).times(task.task) > 1
        arms[label] = SampleSource(run=folder, task=task.task, repeated=repeated)
    return PageTask(
        name=task.task,
        arms=arms,
        metric=task.b.metric,
        known=known,
        url="" if report is None else report.endpoint.base_url,
        key="" if report is None else report.plan.connection.api_key_env,
    )


def _cross(task: str, data: SampleData, *, several: bool) -> DataTable:
    """Return the table of the first answers of A and B; a cell leads to its samples."""
    counts = data.count_sides(task)
    shown = [one for one in SIDES if one != MISSING or any(MISSING in pair for pair in counts)]
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
