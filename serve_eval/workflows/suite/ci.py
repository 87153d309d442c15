"""Describe a suite for CI systems: a JUnit suite for each run, and a case for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evaluation.storage.file_names import SUITE_RUNS
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.ci.properties import list_other
from serve_eval.report.one_line import OneLine, describe_drop, lead
from serve_eval.report.results_table.markdown import list_table_lines
from serve_eval.report.run.cases import choose_state
from serve_eval.report.summary.figures import count, write_figure
from serve_eval.report.task_line import split_change
from serve_eval.schema import REHEARSED, SuiteReport, SuiteRow, VerdictOutcome
from serve_eval.series.result_table import find_suite_results
from serve_eval.shell_words import quote_path
from serve_eval.stats.own_noise import subtract
from serve_eval.verdicts.two_rules import say_in_words
from serve_eval.workflows.suite.changes import describe_changes
from serve_eval.workflows.suite.old_answers import describe_each_old_run, describe_old_runs
from serve_eval.workflows.suite.proven import describe_verdict
from serve_eval.workflows.suite.run_warnings import list_run_warnings
from serve_eval.workflows.suite.table import (
    list_cells,
    list_remarks,
    rank,
    show_value,
)
from serve_eval.workflows.suite.waivers import describe_waiver

_COLUMNS = ("verdict", "run", "task", "value", "95 %", "reference", "fails")


def describe_suite(
    report: SuiteReport,
    out_dir: Path,
    causes: Mapping[str, str] | None = None,
    *,
    stored: bool = True,
) -> CiResult:
    """Return the result of a suite. `causes` has likely causes by RUN/TASK, as far as known.

    Not `stored`: the runs were judged again, so that their own reports say something else.
    """
    rows = sorted(report.rows, key=rank)
    lines = dict(zip(map(_key, rows), _make_lines(report, rows, causes or {}), strict=True))
    notices = describe_each_old_run(report, out_dir) if stored else {}
    lines = {key: replace(line, notice=notices.get(key[0], "")) for key, line in lines.items()}
    old = describe_old_runs(report, out_dir) if stored else ""
    suites = [
        CiSuite(
            name=run.name,
            cases=[
                _describe_row(row, lines[_key(row)]) for row in report.rows if row.run == run.name
            ],
        )
        for run in report.runs
    ]
    table = find_suite_results(out_dir) if stored else None
    return CiResult(
        notice=REHEARSED if report.rehearsal else old,
        title=f"suite {report.name}: {count(len(report.runs), 'run')},"
        f" {count(len(report.rows), 'task')}",
        outcome=report.verdict,
        suites=suites,
        table=CiTable(columns=_COLUMNS, rows=[_list_texts(row) for row in rows]),
        notes=[
            *([] if report.changes is None else [describe_changes(report.changes)]),
            *(
                f"rule: {row.run}/{row.task}: by {row.rule}; {row.other.rule} says"
                f" {row.other.outcome}"
                for row in rows
                if row.other is not None and row.other.outcome is not row.outcome
            ),
            *(f"warning: {line}" for line in list_run_warnings(report)),
            *(": ".join(describe_waiver(use)) for use in report.waivers),
        ],
        commands=[
            f"serve-eval show {quote_path(out_dir / SUITE_RUNS / row.run)} --wrong"
            for row in rows[:1]
            if _choose(row) is CiState.FAILURE
        ],
        line=lines[_key(rows[0])] if rows else None,
        grid=[] if table is None else list(list_table_lines(table)),
    )


def _key(row: SuiteRow) -> tuple[str, str]:
    return row.run, row.task


def _make_lines(
    report: SuiteReport, rows: Sequence[SuiteRow], causes: Mapping[str, str]
) -> list[OneLine]:
    """Return the lines of rows that are sorted, the worst of which speaks for the suite."""
    errors = {run.name: run.error for run in report.runs if run.error is not None}
    lines = []
    for row in rows:
        error = errors.get(row.run) if row.outcome is VerdictOutcome.ERROR else None
        found = causes.get(f"{row.run}/{row.task}", "")
        known = [f"{error.kind}: {error.message}"] if error is not None else [*row.reasons]
        known += [found] if found else []
        sound = row.outcome in (VerdictOutcome.PASS, VerdictOutcome.NOT_JUDGED)
        one = OneLine(
            outcome=describe_verdict(row),
            about=" ".join(filter(None, (f"{row.run}/{row.task}", row.model))),
            figures=_describe_figures(row),
            counts=f"{row.failed} failed, {row.repaired} repaired" if error is None else "",
            cause="" if sound or not known else known[0],
            sure=bool(known) and known[0] != found,
        )
        lines.append(one)
    return lead(lines, range(len(lines)), "tasks")


def _describe_figures(row: SuiteRow) -> str:
    """Return the value against the reference, with the drop and its interval.

    A reference whose number of samples is not known is taken as exact.
    """
    value = show_value(row)
    if value == "-":
        return ""
    known, interval = row.reference, row.interval
    if known is None:
        return describe_drop(value, "")
    shown = write_figure(known, points=row.in_points)
    if row.evaluated is None or row.failed:
        return describe_drop(value, shown)
    if row.difference is not None and row.difference_interval is not None:
        pairs = row.difference, row.difference_interval
        drop, *around = split_change(*pairs, points=row.in_points)
        return describe_drop(value, shown, drop, around)
    sign = -1.0 if row.higher_is_better is False else 1.0
    turned = None
    if interval is not None:
        ends = subtract(row.evaluated, interval, known, row.reference_interval)
        turned = (sign * ends[0], sign * ends[1])
    drop, *around = split_change(sign * (row.evaluated - known), turned, points=row.in_points)
    return describe_drop(value, shown, drop, around)


def _list_texts(row: SuiteRow) -> Sequence[str]:
    return [cell.plain for cell in list_cells(row, (), tested=False)]


def _choose(row: SuiteRow) -> CiState:
    return CiState.SKIPPED if row.waiver else choose_state(row.outcome, row.reasons)


def _describe_row(row: SuiteRow, line: OneLine) -> CiCase:
    _, _, _, value, _, reference, limit = _list_texts(row)
    waived = [] if row.waiver is None else [f"until {row.waiver.until}: {row.waiver.reason}"]
    return CiCase(
        group=row.run,
        name=row.task,
        state=_choose(row),
        line=line if not waived else replace(line, cause=waived[0], sure=True),
        remarks=[
            *(f"{row.run}/{row.task}: {one}" for one in list_remarks(row)),
            *([f"{count(row.repaired, 'sample')} repaired"] if row.repaired else ()),
        ],
        details=[
            *waived,
            *row.reasons,
            *(f"warning: {say_in_words(line)}" for line in row.warnings),
        ],
        properties={
            "value": value,
            "reference": reference,
            "fails": limit,
            "repaired": str(row.repaired),
            **list_other(row.other),
            **{name: str(value) for name, value in row.attributes.items()},
        },
    )
