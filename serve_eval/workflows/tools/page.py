"""Make the page of a check of tools."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval import __version__
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    PageContent,
    Section,
    State,
    TextLines,
)
from serve_eval.schema import REHEARSED, ToolCheck
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.tools.tables import (
    ToolTable,
    tabulate_faults,
    tabulate_kinds,
    tabulate_passes,
)
from serve_eval.workflows.tools.text import (
    conclude,
    describe_finding,
    describe_rest,
    find_outcome,
    list_probes,
)

_STATES: dict[int, State] = {PASS: "pass", FAIL: "fail"}
_COLOURS: dict[str, State] = {"error": "fail", "lacks": "warn", "ignored": "warn"}


def make_tools_page(found: ToolCheck) -> PageContent:
    """Return the page of a check: the conclusion, the findings with examples, and the tables."""
    findings = [row for one in found.findings for row in describe_finding(one)]
    badge, _ = find_outcome(found)
    return PageContent(
        notice=REHEARSED if found.rehearsal else "",
        kind="tools",
        title=f"tools: {badge} {found.model or ''}".strip(),
        heading=found.model or found.base_url,
        state=_STATES.get(found.exit_code, "warn"),
        badge=badge,
        headline=conclude(found),
        rows=[
            Fact(label=label, text=text, state=_COLOURS.get(label, "none"))
            for label, text in (*findings, *list_probes(found), ("endpoint", found.base_url))
        ],
        sections=tuple(_list_sections(found)),
        foot=f"serve-eval {__version__}, {found.started_at}",
    )


def _list_sections(found: ToolCheck) -> Iterator[Section]:
    short = "w1: whole at 1 in flight; s8: streamed at 8"
    yield _make_table("Passes", tabulate_passes(found), "sound: without any error")
    yield _make_table("Without an error, by kind of request", tabulate_kinds(found), short)
    if (faults := tabulate_faults(found))[1]:
        yield _make_table("Errors", faults, short)
    yield TextLines(title="Notes", lines=[text for _, text in describe_rest(found)])


def _make_table(title: str, table: ToolTable, caption: str) -> DataTable:
    names, rows = table
    return DataTable(
        title=title,
        columns=[DataColumn(name=name, number=i > 0) for i, name in enumerate(names)],
        rows=[[DataCell(text=text) for text in row] for row in rows],
        caption=caption,
    )
