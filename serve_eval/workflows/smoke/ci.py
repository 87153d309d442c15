"""Describe a smoke test for CI systems: a case for each row, known failures in their own suite.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.report.ci.ci_result import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    withhold_cases,
)
from serve_eval.report.one_line import OneLine
from serve_eval.schema import REHEARSED
from serve_eval.workflows.smoke.smoke import Smoke, summary

_STATES = {
    CheckOutcome.PASS: CiState.PASSED,
    CheckOutcome.FAIL: CiState.FAILURE,
    CheckOutcome.KNOWN: CiState.SKIPPED,
    CheckOutcome.UNSUPPORTED: CiState.SKIPPED,
    CheckOutcome.ERROR: CiState.ERROR,
}
_WORDS = {
    CheckOutcome.ERROR: "lost",
    CheckOutcome.FAIL: "failed",
    CheckOutcome.PASS: "passed",
    CheckOutcome.KNOWN: "known",
    CheckOutcome.UNSUPPORTED: "unsupported",
}


def describe_smoke(done: Smoke, base_url: str) -> CiResult:
    """Return the result of a smoke test. One that stopped has an error next to its rows."""
    known = [row for row in done.rows if row.outcome is CheckOutcome.KNOWN]
    before = () if done.known is None else done.known.unsupported
    cases = [_describe_row(row, before) for row in done.rows if row not in known]
    if done.rehearsal:
        cases = withhold_cases(cases)
    if done.stopped and not done.died:
        cases.append(
            CiCase(group="smoke", name="stopped", state=CiState.ERROR, message=done.stopped)
        )
    states = {case.state for case in cases}
    outcome = next((one for one in (CiState.ERROR, CiState.FAILURE) if one in states), None)
    suites = [CiSuite(name="serve-eval smoke", cases=cases, host=base_url, seconds=done.seconds)]
    if known:
        expected = [_describe_row(row, before) for row in known]
        suites.append(
            CiSuite(name="serve-eval smoke: known to fail", cases=expected, host=base_url)
        )
    said = {None: "PASS", CiState.ERROR: "ERROR", CiState.FAILURE: "FAIL"}[outcome]
    if done.rehearsal and outcome is not CiState.ERROR:
        said = "INCONCLUSIVE"
    title = f"serve-eval smoke {base_url}"
    return CiResult(
        notice=REHEARSED if done.rehearsal else "",
        title=title,
        outcome=said,
        line=OneLine(
            outcome=said,
            about=title,
            figures=f"the server died during {done.died}" if done.died else "",
            counts=_count(done.rows, before),
            cause=_explain_death(done) if done.died else _name_failed(cases),
            sure=True,
        ),
        suites=suites,
        table=CiTable(
            columns=("outcome", "check", "told"),
            rows=[[row.outcome.value, row.name, row.told] for row in done.rows],
        ),
        notes=list(summary(done)),
    )


def _explain_death(done: Smoke) -> str:
    """Return how the server ended, if that is known, or what the check told that lost it."""
    known = done.stopped.partition("\n")[0].partition(": ")[2]
    return known or next(row.told for row in done.rows if row.name == done.died)


def _name_failed(cases: Sequence[CiCase]) -> str:
    """Return the names of all failed checks, and what the first one told."""
    failing = (CiState.FAILURE, CiState.ERROR)  # the row that failed says more than "stopped"
    bad = [case for state in failing for case in cases if case.state is state]
    if not bad:
        return ""
    failed = [case.name for case in bad if case.state is CiState.FAILURE]
    names = f"{', '.join(failed)} failed; " if len(failed) > 1 else ""
    return f"{names}{bad[0].name}: {bad[0].message}"


def _count(rows: Sequence[CheckRow], before: Collection[str]) -> str:
    """Return the number of rows of each outcome; those unsupported `before` are counted apart."""
    counted = Counter(
        f"{_WORDS[row.outcome]} as before" if row.name in before else _WORDS[row.outcome]
        for row in rows
    )
    order = [*_WORDS.values(), f"{_WORDS[CheckOutcome.UNSUPPORTED]} as before"]
    return ", ".join(f"{counted[word]} {word}" for word in order if counted[word])


def _describe_row(row: CheckRow, before: Collection[str]) -> CiCase:
    passed, known = row.outcome is CheckOutcome.PASS, row.outcome is CheckOutcome.KNOWN
    return CiCase(
        group="smoke",
        name=row.name,
        state=_STATES[row.outcome],
        message=f"known to fail: {row.told}" if known else row.told,
        details=[row.told] if passed else [row.curl] if row.curl else [],
        seconds=row.time_s,
        expected=known or row.name in before,
        in_table=row.outcome is not CheckOutcome.FAIL,
    )
