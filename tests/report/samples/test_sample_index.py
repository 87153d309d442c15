"""Test the index of the samples of a run, and their places."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.report.samples.place import find_place
from serve_eval.report.samples.sample_index import CATEGORIES, SampleIndex, order_by_chance
from serve_eval.report.samples.samples import SampleSource, read_samples
from serve_eval.schema import Attempt, Failure, FailureKind, Outcome, Response
from serve_eval.storage.journal import Record
from serve_eval.storage.scores import ScoreRecord, encode

WORST = st.sampled_from(list(Outcome))
LOST = Attempt(start_s=1.0, end_s=2.0, failure=FailureKind.TIMEOUT, status=None, request_id="r")


def _write(folder: Path, records: list[Record], scores: list[ScoreRecord]) -> SampleSource:
    for part, lines in (
        ("samples", map(msgspec.json.encode, records)),
        ("scores", map(encode, scores)),
    ):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "t.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return SampleSource(run=folder, task="t")


def _answer(name: str, *, cut: bool = False, start_s: float = 0.0) -> Record:
    reason = "length" if cut else "stop"
    attempt = Attempt(start_s=start_s, end_s=start_s, failure=None, status=200, request_id="r")
    return Record(id=name, response=Response(text=name, finish_reason=reason, attempts=(attempt,)))


def _failure(name: str) -> Record:
    failure = Failure(kind=FailureKind.TIMEOUT, message="late", attempts=(LOST,))
    return Record(id=name, failure=failure)


def _score(name: str, outcome: Outcome, *, cut: bool = False) -> ScoreRecord:
    value = float(outcome is Outcome.CORRECT)
    return ScoreRecord(id=name, outcome=outcome, value=value, target="x", truncated=cut)


events = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from(["answer", "cut", "failure", "withdrawn"])),
    max_size=12,
)


@given(events, st.dictionaries(st.sampled_from("abcdef"), WORST))
def test_the_index_agrees_with_reading_all_records(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[str, str]],
    outcomes: dict[str, Outcome],
) -> None:
    made = {
        "answer": _answer,
        "cut": lambda name: _answer(name, cut=True),
        "failure": _failure,
        "withdrawn": lambda name: Record(id=name, withdrawn="doubted"),
    }
    records = [made[kind](name) for name, kind in events]
    last = {one.id: one.response for one in records if one.response is not None}
    scores = [
        _score(name, outcome, cut=name in last and last[name].truncated)
        for name, outcome in outcomes.items()
    ]
    source = _write(tmp_path_factory.mktemp("run"), records, scores)
    index = SampleIndex(source)
    whole = index.read()
    assert whole == {
        name: msgspec.structs.replace(sample, place=None)
        for name, sample in read_samples(source, whole).items()
    }
    counting = {one.id for one in source.records()} | set(outcomes)
    assert set(whole) == counting
    assert index.answers == len(index.rows.keys) == len(counting)
    shown = {name: index.read(np.array([hash(name)])) for name in counting}
    assert all(list(one) == [name] for name, one in shown.items())
    category = dict(zip(index.rows.keys.tolist(), index.rows.category.tolist(), strict=True))
    for name, sample in whole.items():
        word = CATEGORIES[category[hash(name)]]
        assert word.partition(",")[0] == sample.outcome


def test_repeats_are_one_row_with_the_worst_of_them_and_the_first_score(tmp_path: Path) -> None:
    names = ["q#2", "q#10", "q#1", "p#1"]
    outcomes = [Outcome.CORRECT, Outcome.WRONG, Outcome.CORRECT, Outcome.CORRECT]
    scores = [_score(name, one) for name, one in zip(names, outcomes, strict=True)]
    plain = _write(tmp_path, [*map(_answer, names), _failure("p#2")], scores)
    index = SampleIndex(SampleSource(run=plain.run, task="t", repeated=True))
    assert index.answers == 5
    rows = {key: i for i, key in enumerate(index.rows.keys.tolist())}
    place = rows[hash("q")]
    assert CATEGORIES[index.rows.category[place]] == "wrong"
    assert (CATEGORIES[index.rows.first[place]], index.rows.value[place]) == ("right", 1.0)
    assert CATEGORIES[index.rows.category[rows[hash("p")]]] == "failed"
    assert set(index.read(np.array([hash("q")]))) == {"q#1", "q#2", "q#10"}


def test_some_answers_are_drawn_by_chance_in_the_order_of_their_starts(tmp_path: Path) -> None:
    names = [f"q-{i}" for i in range(400)]
    records = [_answer(name, start_s=1000.0 - i) for i, name in enumerate(names)]
    source = _write(tmp_path, records, [_score(name, Outcome.WRONG) for name in names])
    index = SampleIndex(source, most_drawn=50)
    wanted = sorted(names, key=order_by_chance)[:50]
    starts = {name: 1000.0 - i for i, name in enumerate(names)}
    assert [one.started_s for one in index.drawn] == sorted(starts[name] for name in wanted)
    assert {one.outcome for one in index.drawn} == {"wrong"}
    assert index.requests == 400


def test_a_sample_takes_at_most_a_hundred_bytes(tmp_path: Path) -> None:
    peaks = []
    for n in (2000, 22_000):
        names = [f"question-{i}" for i in range(n)]
        scores = [_score(name, Outcome.CORRECT) for name in names]
        source = _write(tmp_path / str(n), list(map(_answer, names)), scores)
        tracemalloc.start()
        index = SampleIndex(source, most_drawn=1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert index.answers == n
    assert peaks[1] - peaks[0] < 20_000 * 100


@pytest.mark.parametrize(
    ("text", "extracted", "found"),
    [
        ("The total is 1,234 apples.", "1234", "1,234"),
        ("90 or 190, so 90.", "90", "90"),
        ("the answer is (b)", "B", "b"),
        ("it is New\n York", "new york", "New\n York"),
        ("x = -5", "-5", "-5"),
        ("a+b", "a+b", "a+b"),
        ("1900", "90", None),
        ("50 and 30\n#### 80", "80.0", "80"),
        ("that is 1,234 or -5.50.", "-5.5", "-5.50"),
        ("some 1 234 in all", "1234.0", "1 234"),
        ("N = 6.02e23", "6.02e+23", "6.02e23"),
        ("0.80 and 180 and 80.05", "80.0", None),
        ("about", "B", None),
        ("anything", "", None),
        ("anything", None, None),
    ],
)
def test_the_last_place_as_a_word_is_found_in_any_form(
    text: str, extracted: str | None, found: str | None
) -> None:
    place = find_place(text, extracted)
    assert (None if place is None else text[place.start : place.end]) == found


def test_lines_and_places_are_counted() -> None:
    place = find_place("7 at first\nthen 8\n7 it is\n", "7")
    assert place is not None
    assert (place.start, place.line, place.lines, place.times) == (18, 3, 3, 2)
