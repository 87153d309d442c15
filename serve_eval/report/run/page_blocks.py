"""Make what only the page of a run shows, from its report and its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from serve_eval.evaluation.endpoint.deployment import describe
from serve_eval.evaluation.results.degradation import what
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.report.course import picture
from serve_eval.report.page.breakdown import show_breakdown
from serve_eval.report.page.content import (
    Fact,
    Facts,
    PictureSection,
    Section,
)
from serve_eval.report.page.questions import tabulate_questions
from serve_eval.report.page.sample_data import PageTask, SampleData
from serve_eval.report.page.samples_section import show_samples
from serve_eval.report.page.settings import show_settings
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.pictures.questions import draw_questions
from serve_eval.report.pictures.run_pictures import draw_answers, draw_task
from serve_eval.report.run.conclusions import (
    PAIRED_RULES,
    choose_lead,
    name_pictures,
    picture_tasks,
)
from serve_eval.report.samples.by_question import RepeatedQuestion, count_by_question
from serve_eval.report.samples.known import know_task
from serve_eval.report.samples.samples import SampleSource
from serve_eval.report.summary import (
    SummaryTask,
    summarise_tasks,
)
from serve_eval.schema import Report, TaskReport


@with_scope
def list_page_blocks(
    report: Report,
    out_dir: Path,
    *,
    include_path: Sequence[str] = (),
    prepared: Sequence[PreparedTask] = (),
) -> list[Section]:
    """Return what only the page of a run shows: pictures, questions, samples, settings.

    Tasks that are not `prepared` are prepared again.
    """
    ready = {one.task.name: one for one in prepared}
    opened = [
        _open_task(report, out_dir, one, include_path, ready.get(one.result.task))
        for one in report.tasks
    ]
    data = SampleData(opened, out_dir, most=report.plan.limits.page_samples)
    return [*_list_sections(report, summarise_tasks(report, out_dir), data)]


def _list_sections(
    report: Report, tasks: Sequence[SummaryTask], data: SampleData
) -> Iterator[Section]:
    several = len(tasks) > 1
    asked = {one.result.task: _count_questions(report, one, data) for one in report.tasks}
    drawn = list(_draw_tasks(report, data, asked))
    lead = choose_lead(drawn, paired=any(one.verdict.rule in PAIRED_RULES for one in report.tasks))
    if several or lead is None:
        lead = None
        if pictures := list(picture_tasks(tasks)):
            yield PictureSection(title="Values", pictures=pictures)
    else:
        yield PictureSection(title="What decides", pictures=[lead])
    if (samples := show_samples(data)) is not None:
        yield samples
    if others := [one for one in drawn if one is not lead]:
        yield PictureSection(title=name_pictures(others), pictures=others, closed=True)
    for name, questions in asked.items():
        yield from tabulate_questions(name, questions, several=several)
    for summary in tasks:
        facts = data.known[summary.result.task]
        yield from show_breakdown(summary, facts.fields if facts else (), several=several)
    yield from _show_settings(report)


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


def _show_settings(report: Report) -> Iterator[Section]:
    """Yield the settings and the machines."""
    yield show_settings("Settings", report.plan)
    servers = [Fact(label=kind, text=what) for kind, what in describe(report.endpoint.info).items()]
    where = Fact(label="base_url", text=report.endpoint.base_url or "no request was sent")
    yield Facts(title="Servers", rows=[where, *servers], closed=True)
    yield show_settings("Environment", report.environment)
    for one in report.tasks:
        shown = {"data": one.dataset, "fingerprint": one.fingerprint, "reference": one.reference}
        yield show_settings(f"Protocol: {one.result.task}", shown)
