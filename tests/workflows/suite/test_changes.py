"""The line about new and changed rows of a suite has a bounded length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.schema import SuiteChanges, SuiteReport, SuiteRow, VerdictOutcome
from serve_eval.workflows.suite.rows import describe_changes, find_changes

ROW = SuiteRow(
    run="a", task="t", model="m", attributes={}, rule="classic",
    own=VerdictOutcome.PASS, outcome=VerdictOutcome.PASS, evaluated=90.0, p=0.2, p_holm=0.2,
)  # fmt: skip


def _report(*rows: SuiteRow) -> SuiteReport:
    return SuiteReport(
        schema_version=1, name="s", verdict="PASS", exit_code=0, alpha=0.05, runs=(), rows=rows,
        waivers=(), started_at="2026-11-28T03:04:05+01:00", wall_s=1.0,
    )  # fmt: skip


def _tell(earlier: SuiteReport, now: SuiteReport) -> str:
    changes = find_changes(earlier, now)
    return "" if changes is None else describe_changes(changes)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (ROW, ""),
        (replace(ROW, p_holm=0.4, q_bh=0.4), ""),
        (replace(ROW, evaluated=80.0), "changed: a/t (value 90.0 to 80.0)"),
        (replace(ROW, evaluated=None), "changed: a/t (value 90.0 to none)"),
        (replace(ROW, outcome=VerdictOutcome.FAIL), "(PASS to FAIL (alone: PASS))"),
        (replace(ROW, proven="drop"), "(PASS to PASS (drop))"),
        (replace(ROW, rule="paired"), "(by classic to paired)"),
        (replace(ROW, failed=2), "(failed 0 to 2)"),
        (replace(ROW, task="u"), "1 row is new, 1 gone since the report of 2026-11-28 02:04 UTC:"),
    ],
)
def test_a_row_is_changed_if_what_it_says_is(now: SuiteRow, told: str) -> None:
    said = _tell(_report(ROW), _report(now))
    assert told in said
    assert bool(said) == bool(told)


def test_many_rows_with_long_names_make_a_short_line() -> None:
    rows = [replace(ROW, run="r" * 200 + str(i), task="t" * 200) for i in range(600)]
    changed = [replace(row, evaluated=1.0) for row in rows[:200]]
    said = _tell(_report(*rows[:400]), _report(*changed, *rows[400:]))
    assert said.startswith("200 rows are new, 200 changed, 200 gone since the report of ")
    assert said.count("and 197 more") == 3
    assert len(said) < 900


def test_a_time_that_is_none_is_shown_as_it_is() -> None:
    assert "the report of last week" in describe_changes(
        SuiteChanges(report_of="last week", new=("a/t",))
    )
