"""Describe a comparison for CI systems. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve_eval.evaluation.steps.nothing_asked import describe_old_answers
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiSuite, CiTable
from serve_eval.report.ci.of_report import (
    choose_line,
    choose_state,
    lead_tasks,
    name_old,
    name_rules,
    pick_remarks,
    remark_on_losses,
)
from serve_eval.report.ci.properties import list_figures, list_other
from serve_eval.report.one_line import OneLine
from serve_eval.report.summary.table import cells, name_worst
from serve_eval.report.task_line import make_compared_line
from serve_eval.report.terminal import RED, diagnose_command
from serve_eval.schema import REHEARSED, ComparedTask, Comparison
from serve_eval.shell_words import quote_path
from serve_eval.workflows.compare.rows import list_warnings, summarise_compared

COLUMNS = ("verdict", "task", "B", "95 %", "A", "change", "fails")


def describe_comparison(
    comparison: Comparison, out_dir: Path, causes: Mapping[str, str] | None = None
) -> CiResult:
    """Return the result of a comparison. `causes` has the likeliest cause by task."""
    outcomes = [task.verdict.outcome for task in comparison.tasks]
    a, b = (side.base_url or side.folder for side in (comparison.a, comparison.b))
    lines = lead_tasks(
        [
            make_compared_line(task, comparison.b.model, (causes or {}).get(task.task, ""))
            for task in comparison.tasks
        ],
        outcomes,
    )
    old = describe_old_answers(comparison.warnings)
    cases = name_old(
        [_describe_task(*pair) for pair in zip(comparison.tasks, lines, strict=True)], old
    )
    folder = quote_path(out_dir)
    red = any(outcome in RED for outcome in outcomes)
    return CiResult(
        notice=REHEARSED if comparison.rehearsal else old,
        title=f"serve-eval compare {a} with {b}",
        outcome=name_worst(outcomes),
        suites=[CiSuite(name="serve-eval compare", cases=cases, host=b, seconds=comparison.wall_s)],
        table=CiTable(
            columns=COLUMNS,
            rows=[
                [cell.plain for cell in cells(summarise_compared(task))]
                for task in comparison.tasks
            ],
        ),
        notes=[
            *(
                f"rule: {line}"
                for task in comparison.tasks
                for line in name_rules(summarise_compared(task))
            ),
            *(
                f"flips: {task.task}: {task.worse} scores fell and {task.better} rose"
                for task in comparison.tasks
            ),
            *(f"warning: {line}" for line in list_warnings(comparison)),
        ],
        commands=[diagnose_command(out_dir), f"serve-eval show {folder} --flips"] if red else [],
        line=choose_line(cases, outcomes),
    )


def _describe_task(task: ComparedTask, line: OneLine) -> CiCase:
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
            *(f"warning: {line}" for line in (*verdict.warnings, *task.warnings)),
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
