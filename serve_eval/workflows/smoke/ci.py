"""Describe a smoke test for CI systems: a case for each row. Pure."""

from __future__ import annotations

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.workflows.smoke.smoke import Smoke

_STATES = {
    CheckOutcome.PASS: CiState.PASSED,
    CheckOutcome.FAIL: CiState.FAILURE,
    CheckOutcome.UNSUPPORTED: CiState.SKIPPED,
}


def describe_smoke(done: Smoke, base_url: str) -> CiResult:
    """Return the result of a smoke test. One that stopped has an error next to its rows."""
    cases = list(map(_describe_row, done.rows))
    if done.stopped:
        cases.append(
            CiCase(group="smoke", name="stopped", state=CiState.ERROR, message=done.stopped)
        )
    states = {case.state for case in cases}
    outcome = next((one for one in (CiState.ERROR, CiState.FAILURE) if one in states), None)
    return CiResult(
        title=f"serve-eval smoke {base_url}",
        outcome={None: "PASS", CiState.ERROR: "ERROR", CiState.FAILURE: "FAIL"}[outcome],
        suites=[CiSuite(name="serve-eval smoke", cases=cases, host=base_url, seconds=done.seconds)],
        table=CiTable(
            columns=("outcome", "check", "told"),
            rows=[[row.outcome.value, row.name, row.told] for row in done.rows],
        ),
    )


def _describe_row(row: CheckRow) -> CiCase:
    passed = row.outcome is CheckOutcome.PASS
    return CiCase(
        group="smoke",
        name=row.name,
        state=_STATES[row.outcome],
        message=row.told,
        details=[row.told] if passed else [row.curl] if row.curl else [],
        seconds=row.time_s,
    )
