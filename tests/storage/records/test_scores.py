"""Test that scores are read back as they were written.

Any text of a model and any length of line is allowed.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from serve_eval.errors import RunFolderError
from serve_eval.schema import Outcome
from serve_eval.storage.file_names import scores_file
from serve_eval.storage.records.scores import (
    ScoreRecord,
    as_on_file,
    find_score,
    read_scores,
    read_values,
    score_records,
    write_scores,
)

TASK = "cases:mine"
TEXTS = st.text(st.characters(), max_size=40)  # with halves of surrogate pairs
RECORDS = st.builds(
    ScoreRecord,
    id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    outcome=st.sampled_from(Outcome),
    value=st.floats(allow_nan=False, allow_infinity=False),
    answer=st.none() | TEXTS,
    target=TEXTS,
    truncated=st.booleans(),
    parts=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), st.floats(0, 1), max_size=3
    ),
    mode=st.just(UNSET) | TEXTS,
)


def _record(name: str, **fields: object) -> ScoreRecord:
    plain = ScoreRecord(
        id=name, outcome=Outcome.WRONG, value=0.5, answer="12", target="18", parts={"strict": 0.0}
    )
    return msgspec.structs.replace(plain, **fields)


def _write(run: Path, *records: ScoreRecord) -> Path:
    file = scores_file(run, TASK)
    file.parent.mkdir(exist_ok=True)
    with write_scores(run, TASK) as scores:
        for record in records:
            scores.write(record)
    return file


@settings(max_examples=40)
@given(st.lists(RECORDS, max_size=6, unique_by=lambda record: record.id))
def test_scores_come_back_as_they_were_written(records: list[ScoreRecord]) -> None:
    with TemporaryDirectory() as folder:
        _write(Path(folder), *records)
        assert list(score_records(Path(folder), TASK)) == [as_on_file(record) for record in records]
        assert read_values(Path(folder), TASK) == {record.id: record.value for record in records}


def test_a_line_of_the_file_has_its_fields_in_order(tmp_path: Path) -> None:
    file = _write(tmp_path, _record("3"), _record("4", mode="empty", truncated=True))
    assert file.read_text().splitlines() == [
        '{"id":"3","outcome":"wrong","value":0.5,"answer":"12","target":"18","truncated":false,"parts":{"strict":0.0}}',
        (
            '{"id":"4","outcome":"wrong","value":0.5,"answer":"12","target":"18","truncated":true,"parts":{"strict":0.0},'
            '"mode":"empty"}'
        ),
    ]
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("length", [1, 1 << 19, (1 << 20) - 100, 1 << 20, 3 << 20])
def test_lines_longer_than_what_is_read_at_once_are_whole(tmp_path: Path, length: int) -> None:
    records = [
        _record("a", answer="x" * length),
        _record("b"),
        _record("c", answer="y" * length),
        _record("d"),
    ]
    _write(tmp_path, *records)
    assert list(read_scores(tmp_path, TASK).values()) == records


def test_a_torn_last_line_is_an_error_unless_the_run_may_have_been_killed(tmp_path: Path) -> None:
    file = _write(tmp_path, _record("a"), _record("b"))
    file.write_bytes(file.read_bytes()[:-20])
    assert set(read_scores(tmp_path, TASK, unfinished=True)) == {"a"}
    for read in (read_scores, read_values):
        with pytest.raises(RunFolderError, match=f"{file} cannot be read") as refused:
            read(tmp_path, TASK)
        assert refused.value.hint == f"Write it again: serve-eval judge {tmp_path}"


def test_scores_that_are_not_there_are_an_error_unless_the_run_may_have_been_killed(
    tmp_path: Path,
) -> None:
    assert read_scores(tmp_path, TASK, unfinished=True) == {}
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_scores(tmp_path, TASK)


@pytest.mark.parametrize(
    "damage",
    [b"{}\n", b"nonsense\n", b'{"id":"a","outcome":"no such","value":1,"target":""}\n', b"\xff\n"],
)
def test_a_damaged_line_is_told(tmp_path: Path, damage: bytes) -> None:
    file = _write(tmp_path, _record("a"))
    file.write_bytes(file.read_bytes() + damage)
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_scores(tmp_path, TASK, unfinished=True)


@settings(max_examples=40)
@given(st.lists(RECORDS, max_size=6), st.sampled_from(["a", 'a"', "\\", "ä", "x" * 9]))
def test_the_score_of_one_sample_is_its_last_one(records: list[ScoreRecord], name: str) -> None:
    records = [
        msgspec.structs.replace(one, id=name, answer=f'{{"id":"{name}",') if i % 3 == 0 else one
        for i, one in enumerate(records)
    ]
    last = {record.id: as_on_file(record) for record in records}
    with TemporaryDirectory() as folder:
        assert find_score(Path(folder), TASK, name) is None
        _write(Path(folder), *records)
        for wanted in (name, "never asked", *last):
            assert find_score(Path(folder), TASK, wanted) == last.get(wanted)


def test_only_the_line_of_the_wanted_sample_is_decoded(tmp_path: Path) -> None:
    file = _write(tmp_path, _record("a"))
    file.write_bytes(b"nonsense\n" + file.read_bytes() + b'{"id":"b",\n{"id":"a",')
    assert find_score(tmp_path, TASK, "a") == _record("a")
    with pytest.raises(RunFolderError, match="cannot be read"):
        find_score(tmp_path, TASK, "b")


def test_settled_scores_are_the_last_ones_of_the_samples_that_stand(tmp_path: Path) -> None:
    scores_file(tmp_path, TASK).parent.mkdir()
    with write_scores(tmp_path, TASK) as scores:
        for name, value in (("a", 0.0), ("b", 0.0), ("a", 1.0), ("c", 1.0)):
            scores.write(_record(name, value=value))
        scores.settle(["c", "never scored", "a"])
        scores.write(_record("d", value=2.0))
    assert read_values(tmp_path, TASK) == {"c": 1.0, "a": 1.0, "d": 2.0}
    assert len(list(score_records(tmp_path, TASK))) == 3
