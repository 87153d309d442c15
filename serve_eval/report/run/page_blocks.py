"""Make what only the page of a run shows, from its report and its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from serve_eval.evaluation.deployment import describe
from serve_eval.evaluation.results.degradation import what
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.report.page.chosen import draw_answers, draw_task
from serve_eval.report.page.content import Fact, Facts, PictureSection, Section
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.page.tables import show_breakdown, show_settings, tabulate_questions
from serve_eval.report.pictures.outcomes import draw_questions
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.run.conclusions import (
    PAIRED_RULES,
    choose_lead,
    name_pictures,
    picture_tasks,
)
from serve_eval.report.samples.details import RepeatedQuestion, count_by_question
from serve_eval.report.samples.known import know_task
from serve_eval.report.samples.samples import SampleSource
from serve_eval.report.summary import SummaryTask, summarise_tasks
from serve_eval.schema import Degradation, Report, TaskReport


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
            yield PictureSection("Values", pictures)
    else:
        yield PictureSection("What decides", [lead])
    if (samples := show_samples(data)) is not None:
        yield samples
    if others := [one for one in drawn if one is not lead]:
        yield PictureSection(name_pictures(others), others, closed=True)
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
            yield Picture(title, title, svg=svg)


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
    servers = [Fact(kind, what) for kind, what in describe(report.endpoint.info).items()]
    where = Fact("base_url", report.endpoint.base_url or "no request was sent")
    yield Facts("Servers", rows=[where, *servers], closed=True)
    yield show_settings("Environment", report.environment)
    for one in report.tasks:
        shown = {"data": one.dataset, "fingerprint": one.fingerprint, "reference": one.reference}
        yield show_settings(f"Protocol: {one.result.task}", shown)


WIDTH, HEIGHT = 900, 275
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 45, 45
_BY_START, _BY_END, _ONSET = "var(--series-1)", "var(--faint)", "var(--bad)"


def picture(task: str, one: Degradation) -> str:
    """Return an SVG of the running share of bad answers, in the order of starts.

    A line marks the request from which the run is worse. A faint curve shows the share in the order
    of ends. The result is empty for a report of a version that stored no course.
    """
    course = one.course
    if course is None or not course.at:
        return ""
    highest = max(*course.by_start, *course.by_end, 0.01)

    def place(request: float, share: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * request / one.of
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share / highest

    def curve(shares: Sequence[float], colour: str, more: str) -> str:
        points = " ".join(
            "{:.1f},{:.1f}".format(*place(at, share))
            for at, share in zip(course.at, shares, strict=True)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" {more}/>'

    def text(
        across: float, down: float, words: str, colour: str = "currentColor", anchor: str = "middle"
    ) -> str:
        return (
            f'<text x="{across:.1f}" y="{down:.1f}" fill="{colour}"'
            f' text-anchor="{anchor}">{escape(words)}</text>'
        )

    onset, _ = place(one.since, 0.0)
    noticed, _ = place(one.noticed, 0.0)
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    requests = "counted requests" if one.counted else "requests"
    title = f"{task}: {what(one)} among the latest {course.window} {requests}"
    label = f"degrading from request {one.since} on (dashed: noticed)"
    late = onset > WIDTH * 0.6
    parts = [
        (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img"'
            f' aria-label="{escape(title, quote=True)}" font-family="sans-serif" font-size="12">'
        ),
        text(LEFT, 16, title, anchor="start"),
        text(onset, TOP - 8, label, _ONSET, "end" if late else "start"),
        f'<path d="M{LEFT},{TOP} V{bottom} H{right}" fill="none" stroke="currentColor"/>',
        *(
            text(LEFT - 6, place(0, share)[1] + 4, f"{share:.0%}", anchor="end")
            for share in (0.0, highest / 2, highest)
        ),
        *(text(place(at, 0)[0], bottom + 16, str(at)) for at in sorted({1, one.of // 2, one.of})),
        text(
            (LEFT + right) / 2,
            HEIGHT - 8,
            "requests in the order of their starts (faint: in the order of their ends)",
        ),
        curve(course.by_end, _BY_END, 'stroke-width="1" opacity="0.6"'),
        curve(course.by_start, _BY_START, 'stroke-width="2"'),
        f'<path d="M{onset:.1f},{TOP} V{bottom}" stroke="{_ONSET}" stroke-width="2"/>',
        f'<path d="M{noticed:.1f},{TOP} V{bottom}" stroke="{_ONSET}" stroke-dasharray="4 4"/>',
        "</svg>",
    ]
    return "\n".join(parts)
