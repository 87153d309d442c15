"""Test that the comparison of two checkouts finds exactly the differences."""

import json

import pytest

from tests.before_after.difference import (
    ABSENT,
    Difference,
    Renamed,
    compare,
    leaves,
    masked,
    read,
)

REPORT = {
    "wall_s": 1.5,
    "plan": {"limits": {"connect_timeout_s": 60.0}},
    "tasks": [{"value": 66.5, "verdict": "PASS"}],
}


def _compared(before, after, *renamed):
    sides = [{"report.json": dict(leaves(side))} for side in (before, after)]
    return compare(sides[0], sides[1], [Renamed.parse(text) for text in renamed])


def test_durations_may_differ_and_nothing_else():
    assert _compared(REPORT, {**REPORT, "wall_s": 9.0}).differences == ()
    [found] = _compared(
        REPORT, {**REPORT, "tasks": [{"value": 66.4, "verdict": "PASS"}]}
    ).differences
    assert found == Difference("report.json/tasks/0/value", "66.5", "66.4")
    assert not masked("/plan/limits/connect_timeout_s")
    assert not masked("/plan/connection")
    assert masked("/records/a/0/response/attempts/1/connection")


def test_what_is_gone_or_new_differs_even_where_its_value_may():
    without = {name: value for name, value in REPORT.items() if name != "wall_s"}
    assert _compared(REPORT, without).differences == (
        Difference("report.json/wall_s", "1.5", ABSENT),
    )
    assert _compared(without, REPORT).differences == (
        Difference("report.json/wall_s", ABSENT, "1.5"),
    )
    assert compare({"report.json": {}}, {}).differences == (
        Difference("report.json", "a file", ABSENT),
    )
    assert len(_compared({"a": []}, {"a": [1]}).differences) == 2


def test_a_meant_rename_holds_for_whole_keys_and_values():
    renamed = {**REPORT, "tasks": [{"value": 66.5, "outcome": "PASSED"}]}
    assert len(_compared(REPORT, renamed).differences) == 2
    assert _compared(REPORT, renamed, "verdict=outcome", "PASS=PASSED").differences == ()
    assert len(_compared(REPORT, renamed, "verdict=outcome", "PAS=PASSED").differences) == 1
    with pytest.raises(ValueError, match="OLD=NEW"):
        Renamed.parse("verdict")


def test_records_are_compared_by_sample_and_in_their_order_where_it_is_fixed(
    tmp_path,
):
    rows = [{"id": "b", "value": 1.0}, {"id": "a", "value": 0.0}, {"id": "b", "value": 0.5}]
    for name, order in (("one", rows), ("two", rows[::-1])):
        (tmp_path / name / "scores").mkdir(parents=True)
        (tmp_path / name / "scores/t.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in order)
        )

    def found(*, ordered):
        one, two = (read(tmp_path / name, (), ordered=ordered) for name in ("one", "two"))
        return compare(one, two).differences

    assert found(ordered=False) == ()
    assert [one.path for one in found(ordered=True)] == []
    (tmp_path / "two/scores/t.jsonl").write_text(
        "".join(json.dumps(rows[i]) + "\n" for i in (1, 0, 2))
    )
    assert [one.path for one in found(ordered=True)] == [
        "scores/t.jsonl/order/0",
        "scores/t.jsonl/order/1",
    ]
    (tmp_path / "two/scores/t.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert Difference("scores/t.jsonl/count", "3", "1") in found(ordered=False)


def test_places_and_ports_are_no_difference(tmp_path):
    for name, port in (("one", 4711), ("two", 4712)):
        (tmp_path / name).mkdir()
        said = {"url": f"http://127.0.0.1:{port}/v1", "log": str(tmp_path / name / "logs/x.log")}
        (tmp_path / name / "report.json").write_text(json.dumps(said))
    sides = [
        read(tmp_path / name, (str(tmp_path / name),), ordered=False) for name in ("one", "two")
    ]
    assert compare(sides[0], sides[1]).differences == ()
    bare = [read(tmp_path / name, (), ordered=False) for name in ("one", "two")]
    assert [one.path for one in compare(bare[0], bare[1]).differences] == ["report.json/log"]
