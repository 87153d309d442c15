"""Describe a check of tool calls for CI systems: a case for each field and each pass. Pure."""

from __future__ import annotations

from serve_eval.report.ci.ci_result import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    withhold_cases,
)
from serve_eval.report.one_line import OneLine
from serve_eval.schema import REHEARSED, ToolCell, ToolCheck, ToolProbe
from serve_eval.verdicts.exit_code import PASS
from serve_eval.workflows.tools.text import conclude, describe_finding, find_outcome

_STATES = {
    "PASS": CiState.PASSED,
    "FAIL": CiState.FAILURE,
    "IGNORED": CiState.SKIPPED,
    "UNSUPPORTED": CiState.SKIPPED,
}


_COUNTS = ("scored", "failed")


def describe_check(found: ToolCheck) -> CiResult:
    """Return the result of a check. A kind that is not supported is skipped."""
    cases = [_describe_probe(row) for row in (*found.unsupported, *found.parameters)]
    cases += [_describe_cell(found, cell) for cell in found.cells]
    if found.rehearsal:
        cases = withhold_cases(cases)
    return CiResult(
        notice=REHEARSED if found.rehearsal else "",
        title=f"serve-eval tools {found.base_url}",
        outcome=find_outcome(found)[0],
        suites=[
            CiSuite(name="serve-eval tools", cases=cases, host=found.base_url, seconds=found.wall_s)
        ],
        table=CiTable(
            columns=("outcome", "answers", "sound", "scored", "failed"),
            rows=[_write_row(found, cell) for cell in found.cells],
        ),
        notes=[conclude(found)],
        line=_make_line(found),
    )


def _make_line(found: ToolCheck) -> OneLine:
    """Return the line about a check: the answers with an error, and the first finding."""
    scored, failed = (sum(getattr(cell, name) for cell in found.cells) for name in _COUNTS)
    sound = sum(cell.sound for cell in found.cells)
    asked = sum(cell.scored + cell.failed for cell in found.cells)
    point = found.findings[0].points_to if found.findings else ""
    cause = conclude(found) + (f", which points to {point}" if point else "")
    return OneLine(
        outcome=find_outcome(found)[0],
        about=" ".join(filter(None, ("tool calls", found.model, found.base_url))),
        figures=f"{sound:,} of {scored:,} answers sound" if scored else "no answer",
        counts=f"{asked:,} asked, {failed} failed",
        cause="" if found.exit_code == PASS else cause,
    )


def _describe_probe(row: ToolProbe) -> CiCase:
    state = _STATES[row.outcome]
    return CiCase(group="tools.fields", name=row.name, state=state, message=row.said)


def _describe_cell(found: ToolCheck, cell: ToolCell) -> CiCase:
    blamed = [one for one in found.findings if cell.name in one.cells]
    rows = [row for one in blamed for row in describe_finding(one)]
    return CiCase(
        group="tools.answers",
        name=cell.name,
        state=CiState.FAILURE if blamed else CiState.PASSED,
        message="; ".join(one.fault for one in blamed),
        details=[f"{label}: {said}" if label else said for label, said in rows],
        properties={fault: str(count) for fault, count in cell.faults.items()},
        seconds=cell.wall_s,
    )


def _write_row(found: ToolCheck, cell: ToolCell) -> list[str]:
    blamed = any(cell.name in one.cells for one in found.findings)
    counts = (cell.sound, cell.scored, cell.failed)
    return ["FAIL" if blamed else "PASS", cell.name, *map(str, counts)]
