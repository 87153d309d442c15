"""Make the document of a comparison: a conclusion on B for each task, and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evaluation.session_log import describe_old_answers
from serve_eval.report.attribution import sentences
from serve_eval.report.ci.ci_result import CiCase, CiSuite
from serve_eval.report.ci.properties import list_figures, list_other
from serve_eval.report.document import Block, Conclusion, Depth, Document
from serve_eval.report.one_line import OneLine
from serve_eval.report.page.content import TextLines
from serve_eval.report.run.cases import (
    choose_state,
    lead_tasks,
    name_old,
    name_rules,
    pick_remarks,
    remark_on_losses,
)
from serve_eval.report.run.conclusions import (
    CHANGES,
    make_conclusion,
    make_statements,
    tabulate_tasks,
)
from serve_eval.report.run.details import show_workers
from serve_eval.report.summary.next_steps import RED, diagnose_command
from serve_eval.report.summary.rows import Row, rows_of
from serve_eval.report.task_line import make_compared_line
from serve_eval.schema import ComparedTask, Comparison
from serve_eval.shell_words import quote_path
from serve_eval.storage.story_files import COMPARE
from serve_eval.workflows.compare.page_blocks import list_page_blocks
from serve_eval.workflows.compare.places import draw_places
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
        story="compare",
        command=f"serve-eval compare {a} with {b}",
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
        suites=[CiSuite(name="serve-eval compare", cases=cases, host=b, seconds=comparison.wall_s)],
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
            yield Block(section=show_workers(workers, f"{task.task}: {side}"))
    if task.places is not None:
        drawn = list(draw_places(task.places))
        told = [task.places.reading] if task.places.reading else []
        title = f"{task.task}: first different token of the examined flips (#: confident)"
        yield Block(section=TextLines(title=title, lines=[*drawn, *told], preformatted=True))


def _describe_case(task: ComparedTask, line: OneLine) -> CiCase:
    verdict = task.verdict
    figures = {"A": verdict.reference, "B": verdict.evaluated}
    sides = {"A": task.a, "B": task.b}
    lost = [f"{name}: {one}" for name, side in sides.items() for one in remark_on_losses(side)]
    return CiCase(
        group="compare",
        name=task.task,
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
