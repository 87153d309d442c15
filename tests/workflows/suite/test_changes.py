"""Test the words for changed rows of a suite, and for proven changes that fail none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_eval.schema import SuiteChanges, SuiteReport, SuiteRow, VerdictOutcome
from serve_eval.workflows.suite.rows import describe_changes, describe_proven, find_changes
from tests.workflows.suite.test_judgement import _row

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


DROP = replace(
    _row(0, 0.01, True, "classic"),
    outcome=VerdictOutcome.PASS,
    proven="drop",
    proven_p=0.02,
    p_rise=0.03,
    evaluated=70.0,
    reference=71.0,
    threshold=69.0,
    margin=1.5,
    default_margin=False,
    higher_is_better=True,
    difference=-1.0,
    difference_interval=(-1.4, -0.6),
    in_points=True,
)
PAIRED: dict[str, Any] = {"rule": "paired"}
SHARES: dict[str, Any] = {"in_points": False, "difference": -0.5, "difference_interval": None}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {},
            "a drop is proven: drop 1.0 (0.6 to 1.4, 95 %), 70.0 against 71.0,"
            " one-sided p = 0.0100, Holm p = 0.0200; it passes because classic fails only values"
            " below 69.0",
        ),
        ({"higher_is_better": False, "p": None, "proven_p": None}, "fails only values above 69.0"),
        ({"threshold": None}, "Holm p = 0.0200"),
        (PAIRED, "because a drop of the margin, 1.5 points, is excluded"),
        (PAIRED | {"default_margin": True}, "margin, 1.5 points (the default), is excluded"),
        (PAIRED | {"margin": None}, "Holm p = 0.0200"),
        (PAIRED | SHARES, "of the margin, 1.500, is excluded"),
        ({"outcome": VerdictOutcome.INCONCLUSIVE}, "Holm p = 0.0200"),
        ({"proven": "rise", "difference": 1.0, "p_rise": None}, "Holm p = 0.0200"),
    ],
)
def test_a_proven_change_comes_with_its_figures_and_why_it_passes(
    fields: dict[str, Any], said: str
) -> None:
    told = describe_proven(replace(DROP, **fields))
    assert told.endswith(said), told


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        (SHARES, "a drop is proven: worse by 0.5000, 70.00 against 71.00, one-sided p = 0.0100"),
        (
            {"proven": "rise", "difference": 1.0, "difference_interval": (0.6, 1.4)},
            "a rise is proven: gain 1.0 (0.6 to 1.4, 95 %), 70.0 against 71.0, one-sided p = 0.03",
        ),
        ({"evaluated": None}, "a drop is proven: drop 1.0 (0.6 to 1.4, 95 %), one-sided p = 0.01"),
    ],
)
def test_its_unit_is_that_of_the_row(fields: dict[str, Any], begins: str) -> None:
    told = describe_proven(replace(DROP, **fields))
    assert told.startswith(begins), told


@pytest.mark.parametrize(
    "fields", [{"proven": ""}, {"outcome": VerdictOutcome.FAIL}, {"difference": None}]
)
def test_nothing_is_said_where_a_fail_says_it_or_nothing_is_known(fields: dict[str, Any]) -> None:
    row: SuiteRow = replace(DROP, **fields)
    assert describe_proven(row) == ""
