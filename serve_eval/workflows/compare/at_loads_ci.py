"""Describe a comparison at several loads for CI systems. Pure."""

from __future__ import annotations

from serve_eval.evaluation.steps.nothing_asked import describe_old_answers
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiSuite, CiTable
from serve_eval.report.ci.of_report import choose_line, choose_state, lead_tasks, name_old
from serve_eval.report.one_line import OneLine, describe_drop
from serve_eval.report.summary.table import ORDER, name_worst
from serve_eval.report.task_line import split_change
from serve_eval.schema import LoadComparison, TaskAtLoad, VerdictOutcome

COLUMNS = ("verdict", "task", "load", "B", "A", "fell", "rose")


def describe_load_comparison(found: LoadComparison) -> CiResult:
    """Return the result of a comparison at several loads, the worst outcome first."""
    ordered = sorted(found.tasks, key=lambda one: (ORDER.index(one.outcome), one.load))
    outcomes = [one.outcome for one in ordered]
    lines = lead_tasks([_make_line(found, one) for one in ordered], outcomes)
    cases = [
        CiCase(
            group=one.task,
            name=f"load {one.load}",
            state=choose_state(one.outcome, ()),
            line=line,
            properties={"fell": str(one.lost), "rose": str(one.won)},
        )
        for one, line in zip(ordered, lines, strict=True)
    ]
    old = describe_old_answers(found.warnings)
    cases = name_old(cases, old)
    suite = CiSuite(name="serve-eval compare", cases=cases, seconds=found.wall_s)
    return CiResult(
        notice=old,
        title="serve-eval compare at several loads",
        outcome=name_worst(outcomes),
        suites=[suite],
        table=CiTable(columns=COLUMNS, rows=[_list_cells(one) for one in ordered]),
        notes=[
            *(f"{task}: {words}" for task, words in found.words.items()),
            *(f"warning: {line}" for line in found.warnings),
        ],
        line=choose_line(cases, outcomes),
    )


def _make_line(found: LoadComparison, one: TaskAtLoad) -> OneLine:
    figures = ""
    if one.a is not None and one.b is not None:
        drop, *_ = split_change(one.b - one.a, None, points=True)
        figures = describe_drop(f"{one.b:.1f}", f"{one.a:.1f}", drop, names=("B", "A"))
    p = one.p if one.p_holm is None else one.p_holm
    tested = "" if p is None else f", p {p:.2g}"
    return OneLine(
        outcome=one.outcome.value,
        about=f"{one.task} at {one.load} in flight",
        figures=figures,
        counts=f"{one.lost} fell, {one.won} rose{tested}, {sum(one.failed)} failed",
        cause="" if one.outcome is VerdictOutcome.PASS else found.words.get(one.task, ""),
        sure=True,
    )


def _list_cells(one: TaskAtLoad) -> list[str]:
    values = ("-" if value is None else f"{value:.1f}" for value in (one.b, one.a))
    return [one.outcome.value, one.task, str(one.load), *values, str(one.lost), str(one.won)]
