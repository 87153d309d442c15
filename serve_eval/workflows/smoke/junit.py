"""Write the table as a JUnit file, the form in which CI systems show tests. Pure."""

from __future__ import annotations

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.report.junit import write_attribute, write_content
from serve_eval.workflows.smoke.smoke import Smoke


def junit(done: Smoke, base_url: str) -> str:
    """Return one test suite with a test case per row.

    FAIL is a failure and UNSUPPORTED is skipped. A smoke test that stopped has an additional error.
    """
    counts = {outcome: sum(row.outcome is outcome for row in done.rows) for outcome in CheckOutcome}
    cases = [_case(row) for row in done.rows]
    if done.stopped:
        cases.append(
            '<testcase classname="smoke" name="stopped"><error'
            f" message={write_attribute(done.stopped)}/></testcase>"
        )
    skipped = counts[CheckOutcome.UNSUPPORTED]
    head = (
        f'<testsuite name="serve-eval smoke" hostname={write_attribute(base_url)}'
        f' tests="{len(cases)}" failures="{counts[CheckOutcome.FAIL]}"'
        f' errors="{int(bool(done.stopped))}" skipped="{skipped}" time="{done.seconds:.3f}">'
    )
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])


def _case(row: CheckRow) -> str:
    told = write_attribute(row.told)
    head = f'<testcase classname="smoke" name={write_attribute(row.name)} time="{row.time_s:.3f}"'
    detail = write_content(row.curl or "")
    match row.outcome:
        case CheckOutcome.PASS:
            return f"{head}><system-out>{write_content(row.told)}</system-out></testcase>"
        case CheckOutcome.FAIL:
            return f"{head}><failure message={told}>{detail}</failure></testcase>"
        case CheckOutcome.UNSUPPORTED:
            return f"{head}><skipped message={told}>{detail}</skipped></testcase>"
