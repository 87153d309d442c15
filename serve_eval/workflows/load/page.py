"""Make the page of a check over loads."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval import __version__
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    PageContent,
    PictureSection,
    Section,
    State,
    TextLines,
)
from serve_eval.report.pictures import draw_load
from serve_eval.report.summary import join_row
from serve_eval.schema import REHEARSED, LoadSurface, LoadTask
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.load.text import (
    COLUMNS,
    describe_bracket,
    describe_task,
    list_cells,
    name_outcome,
)


def make_load_page(found: LoadSurface) -> PageContent:
    """Return the page of a check."""
    broken = [task for task in found.tasks if task.broken or task.failing]
    state: State = {FAIL: "fail", PASS: "pass"}.get(found.exit_code, "warn")  # type: ignore[assignment]
    badge = name_outcome(found, found.exit_code)[0]
    words = [f"{task.task}: {task.words}" for task in broken or found.tasks]
    return PageContent(
        notice=REHEARSED if found.rehearsal else "",
        kind="load",
        title=f"load: {badge} {found.model or ''}".strip(),
        heading=f"{found.model or found.base_url}",
        state=state,
        badge=badge,
        headline="; ".join(words),
        rows=[
            Fact(label="endpoint", text=found.base_url),
            Fact(label="order", text=f"asked in the order {', '.join(map(str, found.order))}"),
            Fact(label="requests", text=f"{found.requests:,}"),
            *(Fact(label="warning", text=line, state="warn") for line in found.warnings),
        ],
        sections=tuple(_list_sections(found)),
        foot=f"serve-eval {__version__}, {found.started_at}",
    )


def _list_sections(found: LoadSurface) -> Iterator[Section]:
    pictures = [drawn for task in found.tasks if (drawn := draw_load(task)) is not None]
    if pictures:
        yield PictureSection(title="Accuracy over the load", pictures=pictures)
    for task in found.tasks:
        yield _tabulate(task)
        if rows := [*describe_task(task)]:
            yield TextLines(title=f"{task.task}: findings", lines=list(map(join_row, rows)))
    if found.bracket is not None:
        yield TextLines(
            title="Where it breaks", lines=list(map(join_row, describe_bracket(found.bracket)))
        )


def _tabulate(task: LoadTask) -> DataTable:
    rows = []
    for point in task.points:
        broken = point.load in task.broken
        texts = [cell.plain for cell in list_cells(point, broken=broken)]
        bad = broken or point.load in task.failing
        state: State = "fail" if bad else "none" if point.outcome in ("lowest", "holds") else "warn"
        numbers = (float(point.load), point.value, float(point.failed))
        cells = [
            DataCell(text=text, order=numbers[i] if i < len(numbers) else None)
            for i, text in enumerate(texts[:-1])
        ]
        rows.append([*cells, DataCell(text=texts[-1], state=state)])
    names = (*COLUMNS[:-1], "finding")
    return DataTable(
        title=task.task,
        columns=[
            DataColumn(name=name, number=0 < i < len(names) - 1) for i, name in enumerate(names)
        ],
        rows=rows,
        caption=(
            "lost, won: scores that fell, rose against the lowest load; p: exact, corrected for all"
            " loads; TTFT: median, and 99th percentile, in ms"
        ),
    )
