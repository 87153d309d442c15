"""Describe a comparison for CI systems. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiSuite, CiTable
from serve_eval.report.ci.of_report import (
    choose_state,
    list_other,
    name_rules,
    pick_remarks,
    remark_on_losses,
)
from serve_eval.report.summary.table import cells, name_worst
from serve_eval.report.terminal import RED, diagnose_command
from serve_eval.schema import REHEARSED, ComparedTask, Comparison
from serve_eval.workflows.compare.rows import summarise_compared

COLUMNS = ("verdict", "task", "B", "95 %", "A", "change", "fails")


def describe_comparison(comparison: Comparison, out_dir: Path) -> CiResult:
    """Return the result of a comparison."""
    outcomes = [task.verdict.outcome for task in comparison.tasks]
    a, b = (side.base_url or side.folder for side in (comparison.a, comparison.b))
    cases = list(map(_describe_task, comparison.tasks))
    folder = shlex.quote(str(out_dir))
    red = any(outcome in RED for outcome in outcomes)
    return CiResult(
        notice=REHEARSED if comparison.rehearsal else "",
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
            *(f"warning: {line}" for line in comparison.warnings),
        ],
        commands=[diagnose_command(out_dir), f"serve-eval show {folder} --flips"] if red else [],
    )


def _describe_task(task: ComparedTask) -> CiCase:
    verdict = task.verdict
    figures = {"A": verdict.reference, "B": verdict.evaluated}
    sides = {"A": task.a, "B": task.b}
    lost = [f"{name}: {one}" for name, side in sides.items() for one in remark_on_losses(side)]
    return CiCase(
        group="compare",
        name=task.task,
        state=choose_state(verdict.outcome, verdict.reasons),
        message="; ".join([verdict.outcome.value, *verdict.reasons, *lost]),
        details=[
            *verdict.reasons,
            *name_rules(summarise_compared(task)),
            *(f"warning: {line}" for line in (*verdict.warnings, *task.warnings)),
        ],
        remarks=[*pick_remarks(verdict.warnings), *lost],
        properties={
            "outcome": verdict.outcome.value,
            "rule": verdict.rule,
            **list_other(verdict.other),
            **{name: f"{value:.6g}" for name, value in figures.items() if value is not None},
            "repaired_a": str(task.a.doubted),
            "repaired_b": str(task.b.doubted),
            "fell": str(task.worse),
            "rose": str(task.better),
        },
    )
