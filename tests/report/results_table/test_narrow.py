"""A narrow table keeps what the user said of the rows, and shortens what servers told first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.report.results_table import (
    DeploymentRow,
    ResultCell,
    ResultsTable,
    TaskColumn,
    write_text,
)
from serve_eval.report.results_table.text import fit_names
from serve_eval.schema import Metric, VerdictOutcome

CELL = ResultCell(
    value=65.0, interval=(40.78, 84.56), outcome=VerdictOutcome.PASS, scored=20, planned=20
)
ADDRESS = "http://gpu-node-{}.cluster.example.org:8000/v1"


def _make(*rows: dict[str, str]) -> ResultsTable:
    return ResultsTable(
        columns=[TaskColumn(task="gsm8k", heading="gsm8k", metric=Metric(), planned=20)],
        rows=[DeploymentRow(model="org/m", attributes=one, cells=[CELL]) for one in rows],
        shown=list(rows[0]),
    )


ROWS = [
    {"recipe": f"recipe-{i % 2}", "kv": ("auto", "fp8")[i % 2], "endpoint": ADDRESS.format(i)}
    for i in range(4)
]


@pytest.mark.parametrize("width", [60, 70, 80])
def test_what_the_user_said_stays_where_a_shorter_address_is_enough(width: int) -> None:
    text = write_text(_make(*ROWS), width)
    head, _, *rows = text.split("\n\n")[1].splitlines()
    assert head.split()[:3] == ["recipe", "kv", "endpoint"]
    assert len({row.partition("  65.0")[0] for row in rows}) == 4, text
    assert max(map(len, text.splitlines())) <= width


def test_a_sampling_seed_stays_as_long_as_the_time() -> None:
    rows = [
        {"recipe": f"recipe-{'x' * 20}-{i // 2}", "sampling seed": str(i % 2 + 1)}
        | {"began": f"2026-11-27 10:00:0{i}"}
        for i in range(4)
    ]
    table = _make(*rows)
    assert fit_names(table, 60).shown == ["recipe", "sampling seed"]
    same = _make(*({**row, "sampling seed": "1"} for row in rows))
    assert "sampling seed" in fit_names(same, 60).shown


def test_a_wide_table_has_the_whole_address() -> None:
    assert ADDRESS.format(3) in write_text(_make(*ROWS), 120)


def test_addresses_are_cut_only_as_far_as_they_differ() -> None:
    rows = [
        {"recipe": "x" * 30, "endpoint": f"http://{'a' * 20}{i}{'b' * 20}/v1"} for i in range(3)
    ]
    text = write_text(_make(*rows), 70)
    shown = text.split("\n\n")[1].splitlines()[2:]
    assert len(set(shown)) == 3, text


def test_what_tells_no_rows_apart_goes_before_an_address_is_cut() -> None:
    rows = [
        {**one, "server": "vLLM 0.11.0 build abcdef", "run": f"r{i}"} for i, one in enumerate(ROWS)
    ]
    text = write_text(_make(*rows), 80)
    assert "not shown here: " in text
    assert "vLLM" not in text
    assert "recipe" in text.split("\n\n")[1].splitlines()[0]


def test_a_reason_of_several_rows_is_one_note() -> None:
    lost = ResultCell(
        value=None, interval=None, outcome=VerdictOutcome.ERROR, scored=0, planned=20, reason="dead"
    )
    table = ResultsTable(
        columns=[TaskColumn(task="gsm8k", heading="gsm8k", metric=Metric(), planned=20)],
        rows=[DeploymentRow(model="m", attributes={"run": r}, cells=[lost]) for r in ("a", "b")],
        shown=["run"],
    )
    assert write_text(table).count("dead") == 1
    assert "* a; b: gsm8k: no value: ERROR: dead" in write_text(table)


def test_only_columns_that_are_shown_are_said_to_differ() -> None:
    cell = ResultCell(value=50.0, interval=None, outcome=VerdictOutcome.PASS, scored=20, planned=20)
    columns = [
        TaskColumn(task="gsm8k", heading=f"gsm8k (n {n})", metric=Metric(), planned=n)
        for n in (20, 40)
    ]
    table = ResultsTable(
        columns=columns,
        rows=[DeploymentRow(model="m", attributes={"run": "a"}, cells=[cell, cell])],
        shown=["run"],
        differing={"gsm8k": "number of samples"},
    )
    told = "gsm8k: 2 columns, whose values cannot be compared: number of samples differ"
    assert told in list(table.list_notes())
    paired = replace(table, against="b")
    assert "gsm8k: 2 columns, since number of samples differ" in list(paired.list_notes())
    one = replace(table, columns=columns[:1], rows=[replace(table.rows[0], cells=[cell])])
    assert not [note for note in one.list_notes() if "columns" in note]
