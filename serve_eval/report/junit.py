"""Write a report as a JUnit file, the form in which CI systems show tests. Pure.

A task is a test case, and so is each part of the path that was expected. FAIL is a failure; ERROR,
INCONCLUSIVE and a path that is not proven are errors, since the test did not decide; outcomes
without a verdict are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from serve_eval.schema import PathFinding, ProofState, Report, TaskReport, VerdictOutcome

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {
    VerdictOutcome.FAIL: "failure",
    VerdictOutcome.ERROR: "error",
    VerdictOutcome.INCONCLUSIVE: "error",
}


def write_junit(report: Report) -> str:
    """Return one test suite with the tasks and the path of a report."""
    cases = [*map(_write_task, report.tasks), *map(_write_finding, report.path)]
    counts = {
        kind: sum(f"<{kind} " in case for case in cases) for kind in ("failure", "error", "skipped")
    }
    head = (
        f'<testsuite name="serve-eval run" hostname={write_attribute(report.endpoint.base_url)}'
        f' tests="{len(cases)}" failures="{counts["failure"]}" errors="{counts["error"]}"'
        f' skipped="{counts["skipped"]}" time="{report.wall_s:.3f}">'
    )
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])


def write_attribute(text: str) -> str:
    """Return a text as a quoted attribute, without characters that XML forbids."""
    return quoteattr(_NOT_XML.sub("", text))


def write_content(text: str) -> str:
    """Return a text as the content of an element, without characters that XML forbids."""
    return escape(_NOT_XML.sub("", text))


def _write_task(task: TaskReport) -> str:
    verdict = task.verdict
    said = [*verdict.reasons, *(f"warning: {line}" for line in verdict.warnings)]
    if verdict.outcome is VerdictOutcome.PASS:
        return _write_case("task", task.result.task, None, "PASS", said)
    kind = _ELEMENTS.get(verdict.outcome, "skipped")
    message = "; ".join([verdict.outcome.value, *verdict.reasons])
    return _write_case("task", task.result.task, kind, message, said)


def _write_finding(found: PathFinding) -> str:
    said = [one for one in (found.evidence, found.hint) if one]
    if found.state is ProofState.PROVEN:
        return _write_case("path", found.claim, None, found.state, said)
    kind = "error" if found.blocks else "skipped"
    return _write_case("path", found.claim, kind, found.reason, said)


def _write_case(folder: str, name: str, kind: str | None, message: str, said: Sequence[str]) -> str:
    """Return a test case. `kind` is the element that says why it did not pass (None: it did)."""
    text = write_content("\n".join(said))
    inner = (
        f"<system-out>{text}</system-out>"
        if kind is None
        else f"<{kind} message={write_attribute(message)}>{text}</{kind}>"
    )
    return (
        f"<testcase classname={write_attribute(folder)} name={write_attribute(name)}>{inner}"
        "</testcase>"
    )
