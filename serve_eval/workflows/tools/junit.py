"""Write a check of tool calls as a JUnit file, the form in which CI systems show tests. Pure."""

from __future__ import annotations

from serve_eval.report.junit import write_attribute, write_content
from serve_eval.schema import ToolCell, ToolCheck, ToolProbe
from serve_eval.workflows.tools.text import describe_finding


def write_junit(found: ToolCheck) -> str:
    """Return one test suite: a test case per probe, per kind of request, and per pass.

    A kind that is not supported is skipped. A pass fails if an error accuses it.
    """
    cases = [_write_probe(row) for row in (*found.unsupported, *found.parameters)]
    cases += [_write_cell(found, cell) for cell in found.cells]
    failures = sum("<failure " in case for case in cases)
    skipped = sum("<skipped " in case for case in cases)
    head = (
        f'<testsuite name="serve-eval tools" hostname={write_attribute(found.base_url)}'
        f' tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skipped}"'
        f' time="{found.wall_s:.3f}">'
    )
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])


def _write_probe(row: ToolProbe) -> str:
    head = f'<testcase classname="tools.fields" name={write_attribute(row.name)}'
    told = write_attribute(row.said)
    if row.outcome == "PASS":
        return f"{head}><system-out>{write_content(row.said)}</system-out></testcase>"
    kind = "failure" if row.outcome == "FAIL" else "skipped"
    return f"{head}><{kind} message={told}/></testcase>"


def _write_cell(found: ToolCheck, cell: ToolCell) -> str:
    head = (
        f'<testcase classname="tools.answers" name={write_attribute(cell.name)}'
        f' time="{cell.wall_s:.3f}"'
    )
    said = f"{cell.sound} of {cell.scored} answers without an error, {cell.failed} failed"
    blamed = [one for one in found.findings if cell.name in one.cells]
    if not blamed:
        return f"{head}><system-out>{write_content(said)}</system-out></testcase>"
    message = write_attribute("; ".join(one.fault for one in blamed))
    lines = "\n".join(
        f"{label}: {said}".removeprefix(": ")
        for one in blamed
        for label, said in describe_finding(one)
    )
    return f"{head}><failure message={message}>{write_content(lines)}</failure></testcase>"
