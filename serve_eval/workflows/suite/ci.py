"""Describe a suite for CI systems: a JUnit suite for each run, and a case for each task."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.ci.of_report import choose_state, list_other, pick_remarks
from serve_eval.report.results_table.markdown import list_table_lines
from serve_eval.report.summary.figures import count
from serve_eval.schema import SuiteReport, SuiteRow
from serve_eval.series.result_table import find_suite_results
from serve_eval.workflows.suite.table import describe_waiver, list_cells, rank

_COLUMNS = ("verdict", "run", "task", "value", "95 %", "reference", "fails")


def describe_suite(report: SuiteReport, out_dir: Path) -> CiResult:
    """Return the result of a suite."""
    rows = sorted(report.rows, key=rank)
    suites = [
        CiSuite(
            name=run.name,
            cases=[_describe_row(row) for row in report.rows if row.run == run.name],
        )
        for run in report.runs
    ]
    folder = shlex.quote(str(out_dir))
    table = find_suite_results(out_dir)
    return CiResult(
        title=f"suite {report.name}: {count(len(report.runs), 'run')},"
        f" {count(len(report.rows), 'task')}",
        outcome=report.verdict,
        suites=suites,
        table=CiTable(columns=_COLUMNS, rows=[_list_texts(row) for row in rows]),
        notes=[
            *(
                f"rule: {row.run}/{row.task}: by {row.rule}; {row.other.rule} says"
                f" {row.other.outcome}"
                for row in rows
                if row.other is not None
            ),
            *(": ".join(describe_waiver(use)) for use in report.waivers),
        ],
        commands=[
            f"serve-eval show {folder}/runs/{shlex.quote(row.run)} --wrong"
            for row in rows[:1]
            if _choose(row) is CiState.FAILURE
        ],
        grid=[] if table is None else list(list_table_lines(table)),
    )


def _list_texts(row: SuiteRow) -> Sequence[str]:
    return [cell.plain for cell in list_cells(row, (), tested=False)]


def _choose(row: SuiteRow) -> CiState:
    return CiState.SKIPPED if row.waiver else choose_state(row.outcome, row.reasons)


def _describe_row(row: SuiteRow) -> CiCase:
    verdict, _, _, value, _, reference, limit = _list_texts(row)
    waived = [] if row.waiver is None else [f"until {row.waiver.until}: {row.waiver.reason}"]
    return CiCase(
        group=row.run,
        name=row.task,
        state=_choose(row),
        message="; ".join([verdict, *waived, *row.reasons, f"value {value}"]),
        remarks=[
            *pick_remarks(row.warnings),
            *([f"{count(row.repaired, 'sample')} repaired"] if row.repaired else ()),
        ],
        details=[*row.reasons, *(f"warning: {line}" for line in row.warnings)],
        properties={
            "value": value,
            "reference": reference,
            "fails": limit,
            "repaired": str(row.repaired),
            **list_other(row.other),
            **{name: str(value) for name, value in row.attributes.items()},
        },
    )
