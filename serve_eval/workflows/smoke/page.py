"""Make the page of a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_eval import __version__
from serve_eval.checks.row import CheckOutcome, CheckRow
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
from serve_eval.schema import REHEARSED
from serve_eval.workflows.smoke.smoke import Smoke, summary

_STATES: Final[Mapping[CheckOutcome, State]] = {
    CheckOutcome.ERROR: "fail",
    CheckOutcome.FAIL: "fail",
    CheckOutcome.KNOWN: "warn",
    CheckOutcome.UNSUPPORTED: "warn",
    CheckOutcome.PASS: "pass",
}
"""The outcomes in the order in which they are shown."""


def make_smoke_page(done: Smoke, base_url: str) -> PageContent:
    """Return the page of a smoke test: failures first, each with the request that shows it."""
    failed = done.exit_code != 0
    if done.rehearsal:
        failed = False
    badge = "ERROR" if done.died else "FAIL" if failed else "PASS"
    ordered = sorted(done.rows, key=lambda row: list(_STATES).index(row.outcome))
    columns = ("check", "outcome", "finding", "time (s)")
    sections: list[Section] = [
        DataTable(
            title="Checks",
            columns=[DataColumn(name=name, number=name == columns[-1]) for name in columns],
            rows=[_row(row) for row in ordered],
            caption="Failures first.",
        )
    ]
    requests = [f"# {row.name}\n{row.curl}\n" for row in ordered if row.curl is not None]
    if requests:
        title = "Requests that show what does not pass"
        sections.append(TextLines(title=title, lines=requests, preformatted=True, closed=True))
    first, *rest = summary(done)
    return PageContent(
        notice=REHEARSED if done.rehearsal else "",
        kind="smoke",
        title=f"smoke: {badge} {base_url}",
        heading=base_url,
        state="fail" if failed else "pass",
        badge=badge,
        headline=first,
        rows=[Fact(label="note", text=line, state="warn") for line in rest],
        sections=sections,
        foot=f"serve-eval {__version__}",
    )


def _row(row: CheckRow) -> list[DataCell]:
    mark = " (tests the model)" if row.model else ""
    return [
        DataCell(text=row.name),
        DataCell(text=row.outcome.value, state=_STATES[row.outcome]),
        DataCell(text=f"{' '.join(row.told.split())}{mark}"),
        DataCell(text=f"{row.time_s:.2f}", order=row.time_s),
    ]
