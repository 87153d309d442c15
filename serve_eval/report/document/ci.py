"""Turn a document into what CI systems show: cases, a table, sentences and next commands."""

from __future__ import annotations

from serve_eval.report.ci.ci_result import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    withhold_cases,
)
from serve_eval.report.document.document import Conclusion, Depth, Document
from serve_eval.report.document.statements import (
    join_statements,
    list_statements,
    list_warnings,
    tabulate,
)
from serve_eval.report.document.terminal import COMMANDS
from serve_eval.report.page.content import DataTable
from serve_eval.storage.story_files import name_command

STATES = {
    "PASS": CiState.PASSED,
    "REGISTERED": CiState.PASSED,
    "WRITTEN": CiState.PASSED,
    "FAIL": CiState.FAILURE,
    "ERROR": CiState.ERROR,
    "KILLED": CiState.ERROR,
    "INTERRUPTED": CiState.ERROR,
}
"""States by outcome; any other one decided nothing."""


def make_ci_result(document: Document) -> CiResult:
    """Return what CI systems show of a document. A rehearsal passes and fails nothing."""
    suites = document.suites or [_make_suite(document)]
    if document.header.rehearsal:
        suites = [
            CiSuite(
                name=one.name,
                cases=withhold_cases(one.cases),
                host=one.host,
                seconds=one.seconds,
            )
            for one in suites
        ]
    shown = [row for row in list_statements(document) if row.depth is Depth.FIRST or row.keep]
    deeper = [row for row in list_warnings(document) if row not in shown]
    return CiResult(
        notice=document.banner,
        title=document.command,
        outcome=document.verdict,
        suites=suites,
        table=_make_table(document),
        notes=join_statements([*shown, *deeper]),
        commands=document.commands[:COMMANDS],
        line=document.make_line(),
        grid=document.summary_lines,
    )


def _make_suite(document: Document) -> CiSuite:
    """Return the cases of a story without its own: one for each conclusion."""
    return CiSuite(
        name=f"serve-eval {name_command(document.story)}",
        cases=[_make_case(document, one) for one in document.conclusions],
        host=document.endpoint,
        seconds=document.header.wall_s,
    )


def _make_case(document: Document, one: Conclusion) -> CiCase:
    return CiCase(
        group=document.story,
        name=one.name,
        state=STATES.get(one.outcome, CiState.SKIPPED),
        message=one.cause,
        line=document.make_line_of(one),
        details=join_statements(one.statements),
    )


def _make_table(document: Document) -> CiTable:
    """Return the table of the conclusions, or of a single one without it the first one.

    One of the first screen comes before deeper ones.
    """
    if document.overview is not None or document.only is None:
        table = document.overview or tabulate(document)
    else:
        tables = [
            block.section
            for block in sorted(document.blocks, key=lambda block: block.depth)
            if block.depth is not Depth.PAGE and isinstance(block.section, DataTable)
        ]
        table = tables[0] if tables else tabulate(document)
    return CiTable(
        columns=[column.name for column in table.columns],
        rows=[[cell.text for cell in row] for row in table.rows],
    )
