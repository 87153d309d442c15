"""Describe a smoke test for CI systems: a case for each row, known failures in their own suite.

Pure.
"""

from __future__ import annotations

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.workflows.smoke.smoke import Smoke, summary

_STATES = {
    CheckOutcome.PASS: CiState.PASSED,
    CheckOutcome.FAIL: CiState.FAILURE,
    CheckOutcome.KNOWN: CiState.SKIPPED,
    CheckOutcome.UNSUPPORTED: CiState.SKIPPED,
}


def describe_smoke(done: Smoke, base_url: str) -> CiResult:
    """Return the result of a smoke test. One that stopped has an error next to its rows."""
    known = [row for row in done.rows if row.outcome is CheckOutcome.KNOWN]
    cases = [_describe_row(row) for row in done.rows if row not in known]
    if done.stopped:
        cases.append(
            CiCase(group="smoke", name="stopped", state=CiState.ERROR, message=done.stopped)
        )
    states = {case.state for case in cases}
    outcome = next((one for one in (CiState.ERROR, CiState.FAILURE) if one in states), None)
    suites = [CiSuite(name="serve-eval smoke", cases=cases, host=base_url, seconds=done.seconds)]
    if known:
        expected = list(map(_describe_row, known))
        suites.append(
            CiSuite(name="serve-eval smoke: known to fail", cases=expected, host=base_url)
        )
    return CiResult(
        title=f"serve-eval smoke {base_url}",
        outcome={None: "PASS", CiState.ERROR: "ERROR", CiState.FAILURE: "FAIL"}[outcome],
        suites=suites,
        table=CiTable(
            columns=("outcome", "check", "told"),
            rows=[[row.outcome.value, row.name, row.told] for row in done.rows],
        ),
        notes=list(summary(done)),
    )


def _describe_row(row: CheckRow) -> CiCase:
    passed, known = row.outcome is CheckOutcome.PASS, row.outcome is CheckOutcome.KNOWN
    return CiCase(
        group="smoke",
        name=row.name,
        state=_STATES[row.outcome],
        message=f"known to fail: {row.told}" if known else row.told,
        details=[row.told] if passed else [row.curl] if row.curl else [],
        seconds=row.time_s,
    )
