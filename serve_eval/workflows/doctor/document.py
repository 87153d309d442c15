"""Make the document of a look at this machine: what stops runs, then what is absent. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.report.ci import CiCase, CiState, CiSuite
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    name_state,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, TextLines
from serve_eval.workflows.doctor.findings import DoctorFinding

FIRST_RUN = "serve-eval run --launcher embedded --tasks word_problems"
"""A run that needs only the extra `servers`."""
_STATES = {
    "problem": ("PROBLEM", CiState.FAILURE),
    "absent": ("ABSENT", CiState.SKIPPED),
    "ok": ("OK", CiState.PASSED),
}
"""By the state of a finding: its outcome and its state in CI, the worst first."""
OPTIONAL = "only some launchers, tasks and pictures need these; -v says which, and how to install"


def make_document(findings: Sequence[DoctorFinding]) -> Document:
    """Return the document of what was found: problems with their fixes, the rest by name."""
    problems = [one for one in findings if one.state == "problem"]
    absent = [one for one in findings if one.state == "absent"]
    works = any(one.name == "[servers]" and one.state == "ok" for one in findings)
    fixes = [f"{one.name}: {one.fix}" for one in findings if one.fix and one.state == "absent"]
    statements = []
    if not problems:
        statements.append(Statement(label="works", text="runs against endpoints"))
    if absent:
        statements.append(Statement(label="absent", text=OPTIONAL))
    return Document(
        story="doctor",
        command="serve-eval setup doctor",
        header=make_header(1 if problems else 0),
        conclusions=[_conclude(one) for one in findings],
        outcome="PROBLEM" if problems else "READY",
        noun="parts",
        overview=_group(findings),
        statements=statements,
        blocks=[
            Block(section=_tabulate(findings), depth=Depth.MORE),
            Block(section=TextLines(title="To have what is absent", lines=fixes)),
        ],
        commands=[FIRST_RUN] if works and not problems else [],
        suites=[
            CiSuite(name="serve-eval setup doctor", cases=[_make_case(one) for one in findings])
        ],
    )


def _conclude(one: DoctorFinding) -> Conclusion:
    """Return a finding; only one that stops runs has words of its own on the first screen."""
    stops = one.state == "problem"
    return Conclusion(
        name=one.name,
        outcome=_STATES[one.state][0],
        figures="" if stops else one.text,
        cause=one.text if stops else "",
        statements=[Statement(label="fix", text=one.fix)] if stops and one.fix else [],
    )


def _group(findings: Sequence[DoctorFinding]) -> DataTable:
    """Return the names of the parts by outcome, the worst first."""
    rows = []
    for state, (outcome, _) in _STATES.items():
        if names := [one.name for one in findings if one.state == state]:
            cells = (outcome, str(len(names)), ", ".join(names))
            rows.append([DataCell(text=text) for text in cells])
            rows[-1][0] = DataCell(text=outcome, state=name_state(outcome))
    columns = ("outcome", "n", "parts")
    return DataTable(
        title="Parts by outcome",
        columns=[DataColumn(name=name, number=name == "n") for name in columns],
        rows=rows,
    )


def _tabulate(findings: Sequence[DoctorFinding]) -> DataTable:
    """Return the table of all parts."""
    ordered = [one for state in _STATES for one in findings if one.state == state]
    rows = [
        [
            DataCell(text=_STATES[one.state][0], state=name_state(_STATES[one.state][0])),
            DataCell(text=one.name),
            DataCell(text=one.text),
        ]
        for one in ordered
    ]
    names = ("outcome", "part", "found")
    return DataTable(title="Parts", columns=[DataColumn(name=name) for name in names], rows=rows)


def _make_case(one: DoctorFinding) -> CiCase:
    return CiCase(
        group="doctor",
        name=one.name,
        state=_STATES[one.state][1],
        message=one.text,
        details=[f"fix: {one.fix}"] if one.fix else [],
    )
