"""Turn tasks with verdicts into conclusions of a document, and into test cases for CI systems.

FAIL is a failure. ERROR is an error, and so is an undecided verdict because answers are missing or
a path is not proven: the deployment did not do what was asked. What is undecided for another
reason, or has no verdict, is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from serve_eval.report.ci_result import CiCase, CiState, OneLine, lead
from serve_eval.report.document import Conclusion, Depth, Statement, name_state, rank_outcome
from serve_eval.report.lines import count_lost
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow
from serve_eval.report.summary.figures import SummaryTask, count, figure, span, summarise_task
from serve_eval.report.summary.headline import (
    ORDER,
    UNICODE,
    cells,
    list_parts,
    name_columns,
    points_of,
)
from serve_eval.report.summary.rows import Row, describe_rules
from serve_eval.report.task_line import BROKEN, list_figures, list_other, make_task_line
from serve_eval.schema import (
    PathFinding,
    ProofState,
    Report,
    TaskReport,
    TaskResult,
    VerdictOutcome,
)
from serve_eval.verdicts import many_tests, repaired, validity
from serve_eval.verdicts.validity import CHOSEN_SAMPLES

CHANGES = ("drop", "rise", "change")
CONCLUSION_ORDER = (
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
        task.result.task,
        task.verdict.outcome.value,
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
    told = any(text.startswith(many_tests.DISAGREE) for _, text in rows)
    deeper = (*DEEPER, "rules") if told else DEEPER
    groups.sort(key=lambda group: _rank(group[0][0]))
    return [
        Statement(
            label,
            text,
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
    return CONCLUSION_ORDER.index(name) if name in CONCLUSION_ORDER else len(CONCLUSION_ORDER)


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
        task.result.task,
        words,
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
                yield Picture(f"{row.label}: value", row.text, ruler=ruler)


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
        shown = [DataCell(cell.plain) for cell in cells(task)]
        shown[0] = DataCell(shown[0].text, state=name_state(task.verdict.outcome))
        rows.append(shown)
    columns = [
        DataColumn(name, number=name in _NUMBERS, spare=int(name in _SPARE))
        for name in name_columns(tasks)
    ]
    return DataTable("Tasks", columns=columns, rows=rows)


_STATES = {
    VerdictOutcome.PASS: CiState.PASSED,
    VerdictOutcome.PASS_BY_IDENTITY: CiState.PASSED,
    VerdictOutcome.FAIL: CiState.FAILURE,
    VerdictOutcome.ERROR: CiState.ERROR,
}
"""The state of an outcome; the others are skipped."""


def make_lines(report: Report, causes: Mapping[str, str] | None = None) -> list[OneLine]:
    """Return the line of each task, of which the worst speaks for all.

    `causes` has the likeliest cause by task, as far as known.
    """
    lines = [
        make_task_line(
            summarise_task(task),
            report.plan.model,
            found=(causes or {}).get(task.result.task, ""),
            attribution=task.attribution,
            degradations=task.degradations,
        )
        for task in report.tasks
    ]
    return lead_tasks(lines, [task.verdict.outcome for task in report.tasks])


def list_cases(report: Report, causes: Mapping[str, str] | None) -> list[CiCase]:
    """Return the test cases of a run: its tasks, and each part of the path that was expected."""
    led = make_lines(report, causes)
    tasks = [_describe_task(task, line) for task, line in zip(report.tasks, led, strict=True)]
    return [*tasks, *map(_describe_finding, report.path)]


def name_old(cases: Sequence[CiCase], old: str) -> list[CiCase]:
    """Return the cases, whose lines begin with the notice `old` that their answers are old."""
    return [
        case if case.line is None or not old else replace(case, line=replace(case.line, notice=old))
        for case in cases
    ]


def lead_tasks(lines: Sequence[OneLine], outcomes: Sequence[VerdictOutcome]) -> list[OneLine]:
    """Return the lines of tasks, of which the worst speaks for all."""
    return lead(lines, [ORDER.index(one) for one in outcomes], "tasks")


def choose_state(outcome: VerdictOutcome, reasons: Sequence[str]) -> CiState:
    """Return the state of a verdict."""
    if outcome is VerdictOutcome.INCONCLUSIVE and any(
        reason.startswith(BROKEN) for reason in reasons
    ):
        return CiState.ERROR
    return _STATES.get(outcome, CiState.SKIPPED)


def _describe_task(task: TaskReport, line: OneLine) -> CiCase:
    verdict = task.verdict
    state = choose_state(verdict.outcome, verdict.reasons)
    return CiCase(
        "task",
        task.result.task,
        state=state,
        line=line,
        details=[
            *verdict.reasons,
            *name_rules(summarise_task(task)),
            *(f"warning: {line}" for line in verdict.warnings),
        ],
        properties={
            **dict(list_figures(summarise_task(task), line)),
            **list_other(verdict.other),
            "retries": str(sum(task.traffic.retries.values())),
        },
        remarks=[*pick_remarks(verdict.warnings), *remark_on_losses(task.result)],
    )


def name_rules(task: SummaryTask) -> list[str]:
    """Return which rule judged and what the other one says, if there is another."""
    return [] if task.verdict.other is None else [f"{task.result.task}: {describe_rules(task)}"]


_REMARKS = (many_tests.DISAGREE, "small_drop", CHOSEN_SAMPLES, validity.CUT, *repaired.WARNINGS)


def pick_remarks(warnings: Sequence[str]) -> list[str]:
    """Return the warnings that must be seen even if a task passed."""
    return [line for line in warnings if line.startswith(_REMARKS)]


def remark_on_losses(result: TaskResult) -> list[str]:
    """Return how many of the samples were repaired, if any."""
    if not result.doubted:
        return []
    return [f"{', '.join(count_lost(result))}, of {count(result.planned, 'sample')}"]


def _describe_finding(found: PathFinding) -> CiCase:
    proven = found.state is ProofState.PROVEN
    return CiCase(
        "path",
        found.claim,
        state=CiState.PASSED if proven else CiState.ERROR if found.blocks else CiState.SKIPPED,
        message=found.state if proven else found.reason,
        details=[one for one in (found.evidence, found.hint) if one],
    )
