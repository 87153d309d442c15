"""Make the page of a run from its report and its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from serve_eval import __version__
from serve_eval.evaluation.capabilities.sampling import describe_defaults
from serve_eval.evaluation.endpoint.deployment import describe
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.results.degradation import what
from serve_eval.evaluation.storage.file_names import PAGE_FILE
from serve_eval.plugins.scope import with_scope
from serve_eval.report.attribution import COLUMNS, list_workers
from serve_eval.report.course import picture
from serve_eval.report.page.breakdown import show_breakdown
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    Facts,
    PageContent,
    PictureSection,
    Section,
    TextLines,
)
from serve_eval.report.page.questions import tabulate_questions
from serve_eval.report.page.sample_data import PageTask, SampleData
from serve_eval.report.page.samples_section import show_samples
from serve_eval.report.page.settings import show_settings
from serve_eval.report.page.verdict import (
    make_facts,
    make_first_line,
    picture_tasks,
    rule_task,
    tabulate_tasks,
)
from serve_eval.report.page.writer import save_page
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.pictures.questions import draw_questions
from serve_eval.report.pictures.run_pictures import draw_answers, draw_task
from serve_eval.report.samples.by_question import RepeatedQuestion, count_by_question
from serve_eval.report.samples.known import know_task
from serve_eval.report.samples.samples import SampleSource
from serve_eval.report.summary import (
    Row,
    SummaryTask,
    describe_leads,
    describe_run,
    describe_workers,
    list_details,
    rows_of,
    summarise_tasks,
)
from serve_eval.report.terminal import explain
from serve_eval.schema import REHEARSED, Attribution, Report, TaskReport


def write_page(
    report: Report,
    out_dir: Path,
    leads: Sequence[Row] = (),
    *,
    include_path: Sequence[str] = (),
    prepared: Sequence[PreparedTask] = (),
    notify: Callable[[str], object] = lambda line: None,
) -> Path:
    """Write the page into the run folder and return its path.

    `leads` are the rows that lead to the cause of a red run; `notify` gets a warning if the
    pictures could not be drawn. Tasks that are not `prepared` are prepared again. Raises
    RunFolderError if the page cannot be written.
    """
    path = out_dir / PAGE_FILE
    content = make_run_page(report, out_dir, leads, include_path=include_path, prepared=prepared)
    save_page(content, path, notify)
    return path


@with_scope
def make_run_page(
    report: Report,
    out_dir: Path,
    leads: Sequence[Row] = (),
    *,
    include_path: Sequence[str] = (),
    prepared: Sequence[PreparedTask] = (),
) -> PageContent:
    """Return the page of a run."""
    tasks = summarise_tasks(report, out_dir)
    first = make_first_line(tasks)
    ready = {one.task.name: one for one in prepared}
    opened = [
        _open_task(report, out_dir, one, include_path, ready.get(one.result.task))
        for one in report.tasks
    ]
    data = SampleData(opened, out_dir, most=report.plan.limits.page_samples)
    alone = tasks[0].result.task if len(tasks) == 1 else ""
    facts = make_facts(rows_of(tasks[0]), alone) if alone else []
    rows = [row for task in report.tasks for row in describe_workers(task, report)]
    rows += [*describe_leads(report, leads), *describe_run(report, out_dir)]
    return PageContent(
        notice=REHEARSED if report.rehearsal else "",
        kind="run",
        title=", ".join(f"{task.result.task}: {task.verdict.outcome}" for task in report.tasks),
        heading=report.plan.model or report.endpoint.base_url,
        state=first.state,
        badge=first.badge,
        headline=first.text,
        ruler=rule_task(tasks[0]) if alone else None,
        rows=[*facts, *make_facts(rows)],
        sections=tuple(_list_sections(report, tasks, data)),
        foot=f"serve-eval {__version__}, {report.started_at}",
    )


def _list_sections(
    report: Report, tasks: Sequence[SummaryTask], data: SampleData
) -> Iterator[Section]:
    if several := len(tasks) > 1:
        yield tabulate_tasks(tasks)
        for summary in tasks:
            if details := list_details(summary):
                name = summary.result.task
                yield Facts(title=name, rows=make_facts(details, name))
    asked = {one.result.task: _count_questions(report, one, data) for one in report.tasks}
    drawn = [*picture_tasks(tasks), *_draw_tasks(report, data, asked)]
    if drawn:
        yield PictureSection(title="Pictures", pictures=drawn)
    for name, questions in asked.items():
        yield from tabulate_questions(name, questions, several=several)
    for summary in tasks:
        facts = data.known[summary.result.task]
        yield from show_breakdown(summary, facts.fields if facts else (), several=several)
    for task in report.tasks:
        if task.attribution is not None:
            yield from _show_workers(task.attribution, task.result.task)
    if (samples := show_samples(data)) is not None:
        yield samples
    yield from _show_settings(report, tasks[0].resume)


def _draw_tasks(
    report: Report, data: SampleData, asked: Mapping[str, Sequence[RepeatedQuestion]]
) -> Iterator[Picture]:
    """Yield the pictures of all tasks; `asked` has the questions of those with repeats."""
    for one in report.tasks:
        yield from _draw(one, data)
        yield from draw_questions(one.result.task, asked[one.result.task])


def _draw(task: TaskReport, data: SampleData) -> Iterator[Picture]:
    """Yield the pictures of a task; a degradation has one of its own."""
    yield from draw_task(task)
    [index] = data.indexes[task.result.task].values()
    yield from draw_answers(task, index.drawn, index.requests)
    for one in task.degradations:
        title = f"{task.result.task}: {what(one)}"
        if svg := picture(task.result.task, one):
            yield Picture(title=title, description=title, svg=svg)


def _count_questions(report: Report, task: TaskReport, data: SampleData) -> list[RepeatedQuestion]:
    """Return the questions of a task with repeats; none of another one."""
    repeats = report.plan.times(task.result.task)
    if repeats < 2:
        return []
    [index] = data.indexes[task.result.task].values()
    return count_by_question(index.source, repeats)


def _open_task(
    report: Report,
    out_dir: Path,
    one: TaskReport,
    include_path: Sequence[str],
    prepared: PreparedTask | None,
) -> PageTask:
    name = one.result.task
    source = SampleSource(run=out_dir, task=name, repeated=report.plan.times(name) > 1)
    return PageTask(
        name=name,
        arms={"": source},
        metric=one.result.metric,
        know=lambda wanted: know_task(
            report.plan, one.spec, one.reference, include_path, wanted, prepared
        ),
        url=report.endpoint.base_url,
        key=report.plan.connection.api_key_env,
    )


def _show_workers(told: Attribution, task: str) -> Iterator[DataTable]:
    rows = [
        [DataCell(text=cell, state="fail" if accused else "none") for cell in cells]
        for cells, accused in list_workers(told)
    ]
    if rows:
        columns = [DataColumn(name=name, number=i > 2) for i, name in enumerate(COLUMNS)]
        yield DataTable(title=f"{task}: workers", columns=columns, rows=rows)


def _list_defaults(report: Report) -> Iterator[Fact]:
    """Yield what the endpoint adds to requests, and what the run sends in its place."""
    for line in describe_defaults(report.sampling_defaults):
        yield Fact(label="sampling defaults", text=line)


def _show_settings(report: Report, resume: str) -> Iterator[Section]:
    """Yield the details that the terminal shows with --verbose, the settings and the machines."""
    for one in report.tasks:
        yield TextLines(
            title=f"Details: {one.result.task}", lines=[*explain(one, resume)], closed=True
        )
    yield show_settings("Settings", report.plan)
    servers = [Fact(label=kind, text=what) for kind, what in describe(report.endpoint.info).items()]
    yield Facts(
        title="Servers",
        rows=[
            Fact(label="base_url", text=report.endpoint.base_url or "no request was sent"),
            *servers,
            *_list_defaults(report),
        ],
        closed=True,
    )
    yield show_settings("Environment", report.environment)
    for one in report.tasks:
        shown = {"data": one.dataset, "fingerprint": one.fingerprint, "reference": one.reference}
        yield show_settings(f"Protocol: {one.result.task}", shown)
