"""Turn tasks with verdicts into conclusions of a document, for a run and for a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlencode

from serve_eval.report.document import Conclusion, Depth, Statement, name_state, rank_outcome
from serve_eval.report.one_line import OneLine
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow
from serve_eval.report.summary.axis import UNICODE
from serve_eval.report.summary.figures import figure, span
from serve_eval.report.summary.headline import list_parts, points_of
from serve_eval.report.summary.rows import Row
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.report.summary.table import cells, name_columns
from serve_eval.verdicts import two_rules

CHANGES = ("drop", "rise", "change")
ORDER = (
    "error", "fix", "why", "stopped", "repeats", *CHANGES, "value", "likely", "where", "differs",
    "rules", "rule", "asked", "cut", "by", "e.g.", "workers", "path", "warning",
)  # fmt: skip
"""Labels, the most important first; those of others follow in their own order."""
PAIRED_RULES = ("paired", "noninferiority", "anchors")
"""Rules that judge prompt by prompt."""
CHANGE_TITLE = ": change"
"""Part of the title of the picture of a change."""
NAMED = 4
"""Pictures that a title names at most."""
ROW_STATES: dict[str, State] = {"error": "fail", "warning": "warn"}
DEEPER = ("rule", "margin", "speed", "run", "A", "B", "folder")
"""Labels that no first screen needs."""
KEPT = ("repeats", "spread", "cut")
"""Labels that are shown of a task that passed among several, too."""
_ANSWER = re.compile(r": (?:A )?answered ")
"""Stands between the id of a sample and its answer, or the answers of both sides."""
_NUMBERS = ("value", "95 %", "reference", "change", "A", "B")
_SPARE = ("change",)
"""The column that a narrow terminal leaves out: value and reference show the same."""


def make_conclusion(task: SummaryTask, line: OneLine, rows: Iterable[Row]) -> Conclusion:
    """Return the conclusion on a task; `rows` are all that is known of it, in any order.

    `line` has its figures, its counts and its likeliest cause in a few words.
    """
    ruler = rule_task(task)
    return Conclusion(
        name=task.result.task,
        outcome=task.verdict.outcome.value,
        figures=line.figures,
        drawn="  ".join(list_parts(task, None if ruler is None else UNICODE)),
        ruler=ruler,
        counts=line.counts,
        cause=line.cause,
        sure=line.sure,
        statements=make_statements(rows, task.result.task),
    )


def make_statements(
    rows: Iterable[Row], task: str = "", *, depth: Depth = Depth.FIRST
) -> list[Statement]:
    """Return rows as statements, the most important first; those of a task lead to its samples."""
    rows, groups = list(rows), list[list[Row]]()
    for row in rows:
        if row[0] or not groups:
            groups.append([row])
        else:  # it goes on with the row before it
            groups[-1].append(row)
    told = any(text.startswith(two_rules.DISAGREE) for _, text in rows)
    deeper = (*DEEPER, "rules") if told else DEEPER
    groups.sort(key=lambda group: _rank(group[0][0]))
    return [
        Statement(
            label=label,
            text=text,
            depth=max(depth, Depth.MORE) if label in deeper else depth,
            state=ROW_STATES.get(label, "none"),
            keep=label in KEPT,
            href=_find_place(label, text, task) if task else "",
        )
        for group in groups
        for label, text in group
    ]


def _rank(label: str) -> int:
    """Return the place of a label; slices come where the order says "by"."""
    name = label.partition(" ")[0] if label.startswith("by ") else label
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _find_place(label: str, text: str, task: str) -> str:
    """Return the link to the samples that a row is about, or "" if it is about none."""
    if label == "e.g.":
        name = _ANSWER.split(text, maxsplit=1)[0]
        return f"#{urlencode({'sample': f'{task}/{name}'})}"
    return f"#{urlencode({'task': task, 'flip': 'changed'})}" if label in CHANGES else ""


def rule_task(task: SummaryTask) -> Ruler | None:
    """Return the drawn line of a task, or None if it has none.

    Its words name the marks, of which the first line has the figures.
    """
    points = points_of(task)
    if points is None:
        return None
    metric = task.result.metric
    words = f"● {task.names[0] or 'value'} {figure(points.value, metric)}"
    if points.interval is not None:
        words += f" ({span(points.interval, metric)})"
    if points.reference is not None:
        words += f"  ▲ {task.names[1]} {figure(points.reference, metric)}"
    if points.threshold is not None:
        words += f"  ┃ threshold {figure(points.threshold, metric)}"
    row = RulerRow(
        label=task.result.task,
        text=words,
        value=points.value,
        interval=points.interval,
        reference=points.reference,
        threshold=points.threshold,
    )
    low, high = points.ends
    return Ruler(low=low, high=high, rows=[row])


def picture_tasks(tasks: Sequence[SummaryTask]) -> Iterator[Picture]:
    """Yield the ruler of each of several tasks; that of a single one stands below the verdict."""
    if len(tasks) > 1:
        for task in tasks:
            if (ruler := rule_task(task)) is not None:
                [row] = ruler.rows
                yield Picture(title=f"{row.label}: value", description=row.text, ruler=ruler)


def choose_lead(pictures: Sequence[Picture], *, paired: bool) -> Picture | None:
    """Return the picture that answers the question of a task: the change of pairs, or the test."""
    changes = [one for one in pictures if CHANGE_TITLE in one.title]
    return next(iter([*(changes if paired else []), *pictures]), None)


def name_pictures(pictures: Sequence[Picture]) -> str:
    """Return the title of folded pictures, with what the first ones show."""
    shown = [one.title.partition(": ")[2] or one.title for one in pictures]
    names = list(dict.fromkeys(shown))
    more = ", ..." if len(names) > NAMED else ""
    return f"More pictures: {', '.join(names[:NAMED])}{more}"


def tabulate_tasks(tasks: Sequence[SummaryTask]) -> DataTable:
    """Return the table of tasks, the worst first."""
    rows = []
    for task in sorted(tasks, key=lambda one: rank_outcome(one.verdict.outcome)):
        shown = [DataCell(text=cell.plain) for cell in cells(task)]
        shown[0] = DataCell(text=shown[0].text, state=name_state(task.verdict.outcome))
        rows.append(shown)
    columns = [
        DataColumn(name=name, number=name in _NUMBERS, spare=int(name in _SPARE))
        for name in name_columns(tasks)
    ]
    return DataTable(title="Tasks", columns=columns, rows=rows)
