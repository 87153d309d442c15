"""Write the table as a JUnit file, the form in which CI systems show tests. Pure."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.workflows.smoke.smoke import Smoke

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(done: Smoke, base_url: str) -> str:
    """Return one test suite with a test case per row.

    FAIL is a failure and UNSUPPORTED is skipped. A smoke test that stopped has an additional error.
    """
    counts = {outcome: sum(row.outcome is outcome for row in done.rows) for outcome in CheckOutcome}
    cases = [_case(row) for row in done.rows]
    if done.stopped:
        cases.append(
            '<testcase classname="smoke" name="stopped"><error'
            f" message={_attribute(done.stopped)}/></testcase>"
        )
    head = (
        f'<testsuite name="serve-eval smoke" hostname={_attribute(base_url)} tests="{len(cases)}" '
        f'failures="{counts[CheckOutcome.FAIL]}" errors="{int(bool(done.stopped))}" '
        f'skipped="{counts[CheckOutcome.UNSUPPORTED]}" time="{done.seconds:.3f}">'
    )
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])


def _case(row: CheckRow) -> str:
    head = f'<testcase classname="smoke" name={_attribute(row.name)} time="{row.time_s:.3f}"'
    detail = escape(_NOT_XML.sub("", row.curl or ""))
    match row.outcome:
        case CheckOutcome.PASS:
            return (
                f"{head}><system-out>{escape(_NOT_XML.sub('', row.told))}</system-out></testcase>"
            )
        case CheckOutcome.FAIL:
            return f"{head}><failure message={_attribute(row.told)}>{detail}</failure></testcase>"
        case CheckOutcome.UNSUPPORTED:
            return f"{head}><skipped message={_attribute(row.told)}>{detail}</skipped></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("", text))
