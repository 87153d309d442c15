"""Make the document of a comparison: a conclusion on B for each task, with what differs."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from serve_eval.evaluation.run_session import describe_old_answers
from serve_eval.plugins.scope import with_scope
from serve_eval.report.attribution import sentences
from serve_eval.report.ci_result import CiCase, CiSuite, OneLine, write_line
from serve_eval.report.document import Block, Conclusion, Depth, Document
from serve_eval.report.page.chosen import MISSING, SIDES, draw_compared, draw_graded, draw_times
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    PictureSection,
    Section,
    TextLines,
)
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.page.tables import contrast_settings, show_breakdown
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.run.conclusions import (
    CHANGES,
    choose_lead,
    choose_state,
    lead_tasks,
    make_conclusion,
    make_statements,
    name_old,
    name_pictures,
    name_rules,
    pick_remarks,
    picture_tasks,
    remark_on_losses,
    tabulate_tasks,
)
from serve_eval.report.run.document import show_workers
from serve_eval.report.samples.known import KnownTask, know_task
from serve_eval.report.samples.samples import SampleSource
from serve_eval.report.summary.rows import RED, Row, diagnose_command, rows_of
from serve_eval.report.task_line import list_figures, list_other, make_compared_line
from serve_eval.schema import ComparedTask, Comparison, Plan, Report
from serve_eval.shell_words import quote_path
from serve_eval.storage import run_folder
from serve_eval.storage.report_file import find_report
from serve_eval.storage.scores import read_values
from serve_eval.storage.story_files import COMPARE
from serve_eval.storage.story_results import locate_runs
from serve_eval.workflows.compare.divergence import draw_places
from serve_eval.workflows.compare.rows import (
    MORE_FLIPS,
    describe_agreement_of,
    describe_flip,
    describe_sides,
    describe_task,
    list_warnings,
    summarise_compared,
)

SHOWN = 3
"""Number of flips shown with their texts; comparison.json has more."""


def make_document(
    comparison: Comparison,
    out_dir: Path,
    causes: Mapping[str, str] | None = None,
    places: Sequence[str] = (),
    *,
    include_path: Sequence[str] = (),
    most: int | None = None,
) -> Document:
    """Return the document of a comparison.

    `causes` has the likeliest cause by task, and `places` say where score was lost, each behind
    the name of its task. `most` is the number of answers of a side that the page shows.
    """
    a, b = (side.base_url or side.folder for side in (comparison.a, comparison.b))
    old, causes = describe_old_answers(comparison.warnings), causes or {}
    lines = lead_tasks(
        [
            make_compared_line(one, comparison.b.model, causes.get(one.task, ""))
            for one in comparison.tasks
        ],
        [one.verdict.outcome for one in comparison.tasks],
    )
    pairs = list(zip(comparison.tasks, lines, strict=True))
    cases = name_old([_describe_case(*pair) for pair in pairs], old)
    red = any(one.verdict.outcome in RED for one in comparison.tasks)
    show = f"serve-eval show {quote_path(out_dir)} --flips"
    return Document(
        "compare",
        f"serve-eval compare {a} with {b}",
        names_endpoint=False,
        header=comparison,
        conclusions=[_conclude(one, line, causes, places) for one, line in pairs],
        overview=tabulate_tasks([summarise_compared(one) for one in comparison.tasks]),
        model=comparison.b.model or "",
        endpoint=b,
        notice=old,
        statements=make_statements([*describe_sides(comparison), ("folder", str(out_dir))]),
        blocks=[block for one in comparison.tasks for block in _list_blocks(one)],
        warnings=list(list_warnings(comparison)),
        commands=[diagnose_command(out_dir), show] if red else [],
        suites=[CiSuite("serve-eval compare", cases, host=b, seconds=comparison.wall_s)],
        result=out_dir / COMPARE.result,
        make_page_blocks=lambda: list_page_blocks(comparison, out_dir, include_path, most),
    )


def _conclude(
    task: ComparedTask, line: OneLine, causes: Mapping[str, str], places: Sequence[str]
) -> Conclusion:
    """Return the conclusion on B, with what decides first and the counts behind it deeper."""
    name = task.task
    rows = [*rows_of(summarise_compared(task)), *describe_task(task)]
    if name in causes:
        rows.append(("likely", causes[name]))
    here = [place for place in places if place.startswith(f"{name}: ")]
    rows += [("where", place.removeprefix(f"{name}: ")) for place in here]
    flips = [describe_flip(name, flip) for flip in task.flips[:SHOWN]]
    rows += [row for flip in flips[:1] for row in flip[:1]]
    for side, workers in zip("AB", task.attributions, strict=True):
        if workers is not None:
            rows += [("workers", f"{side}: {one}") for one in sentences(workers)]
    rows += [("warning", one) for one in task.warnings if not one.startswith(MORE_FLIPS)]
    deeper = [*_list_flips(task, flips), *describe_agreement_of(task)]
    found = make_conclusion(summarise_compared(task), line, rows)
    own = [replace(one, keep=one.label in CHANGES) for one in found.statements]
    statements = [*own, *make_statements(deeper, name, depth=Depth.MORE)]
    return replace(found, statements=statements)


def _list_flips(task: ComparedTask, flips: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """Yield the rest of the first flip, the other ones, and how many there are."""
    for i, flip in enumerate(flips):
        yield from [(flip[0][0], flip[0][1])] if i else []
        yield from flip[1:]
    left = task.worse + task.better - len(flips)
    if left > 0 and task.flips:
        yield "flips", f"{left} more; comparison.json has {len(task.flips)} with their texts"


def _list_blocks(task: ComparedTask) -> Iterator[Block]:
    """Yield the tables of workers, and where the examined flips first differ."""
    for side, workers in zip("AB", task.attributions, strict=True):
        if workers is not None:
            yield Block(show_workers(workers, f"{task.task}: {side}"))
    if task.places is not None:
        drawn = list(draw_places(task.places))
        told = [task.places.reading] if task.places.reading else []
        title = f"{task.task}: first different token of the examined flips (#: confident)"
        yield Block(TextLines(title, [*drawn, *told], preformatted=True))


def _describe_case(task: ComparedTask, line: OneLine) -> CiCase:
    verdict = task.verdict
    figures = {"A": verdict.reference, "B": verdict.evaluated}
    sides = {"A": task.a, "B": task.b}
    lost = [f"{name}: {one}" for name, side in sides.items() for one in remark_on_losses(side)]
    return CiCase(
        "compare",
        task.task,
        state=choose_state(verdict.outcome, verdict.reasons),
        line=line,
        details=[
            *verdict.reasons,
            *name_rules(summarise_compared(task)),
            *(f"warning: {one}" for one in (*verdict.warnings, *task.warnings)),
        ],
        remarks=[*pick_remarks(verdict.warnings), *lost],
        properties={
            **dict(list_figures(summarise_compared(task), line)),
            **list_other(verdict.other),
            **{name: f"{value:.6g}" for name, value in figures.items() if value is not None},
            "failed_a": str(task.a.failed),
            "failed_b": str(task.b.failed),
            "repaired_a": str(task.a.doubted),
            "repaired_b": str(task.b.doubted),
            "fell": str(task.worse),
            "rose": str(task.better),
        },
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
        yield PictureSection("What decides", [lead])
    elif pictures := list(picture_tasks(summaries)):
        yield PictureSection("Values", pictures)
    for task in tasks:
        yield _cross(task.task, data, several=several)
    if (samples := show_samples(data)) is not None:
        yield samples
    if others := [one for one in drawn if one is not lead]:
        yield PictureSection(name_pictures(others), others, closed=True)
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
            DataCell(f"A {a}"),
            *(
                DataCell(
                    f"{counts[a, b]:,}",
                    order=counts[a, b],
                    href=f"#{urlencode({'task': task, 'a': a, 'b': b})}" if counts[a, b] else "",
                )
                for b in shown
            ),
        ]
        for a in shown
    ]
    return DataTable(
        f"{task}: A and B" if several else "A and B",
        columns=[
            DataColumn("first answers"),
            *(DataColumn(f"B {b}", number=True) for b in shown),
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


class TellingComparison(Comparison):
    """A comparison whose text is the line of its verdict: the outcome and the figures."""

    __slots__ = ()

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """Return the same comparison."""
        return cls(**{one.name: getattr(comparison, one.name) for one in fields(comparison)})

    def __str__(self) -> str:
        if not self.tasks:
            return "no task was compared"
        return write_line(make_document(self, Path(self.b.folder).parent).make_line())
