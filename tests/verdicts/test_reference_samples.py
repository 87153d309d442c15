from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ReferenceFileError
from serve_eval.protocol.fingerprint import KEY_BYTES, sample_key
from serve_eval.schema import Sample
from serve_eval.verdicts.reference_samples import (
    LEVELS,
    SampleScores,
    as_stored,
    places,
    read,
    write,
)


def _scores(*runs: list[float], lo: float = 0.0, hi: float = 1.0) -> SampleScores:
    keys = b"".join(
        sample_key(Sample(id=str(i), prompt="p", target="t")) for i in range(len(runs[0]))
    )
    return SampleScores(
        task="t", lo=lo, hi=hi, keys=keys, runs=tuple(array("d", run) for run in runs)
    )


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=70), st.integers(1, 3))
def test_right_or_wrong_scores_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, run: list[float], k: int
) -> None:
    path = tmp_path_factory.mktemp("s") / "x" / "f.json"
    scores = _scores(*[run] * k)
    assert read(path, write(path, scores)) == scores
    assert json.loads(path.read_text())["encoding"] == "bitmap"


@given(st.lists(st.floats(-3, 5), min_size=1, max_size=40))
def test_other_scores_come_back_to_sixteen_bits(
    tmp_path_factory: pytest.TempPathFactory, run: list[float]
) -> None:
    path = tmp_path_factory.mktemp("s") / "f.json"
    found = read(path, write(path, _scores([*run, 0.5], lo=-3.0, hi=5.0)))
    assert list(found.runs[0]) == pytest.approx([*run, 0.5], abs=8.0 / LEVELS)


def test_sums_come_back_exactly_and_scores_without_them_have_no_field(tmp_path: Path) -> None:
    parts = {"nats": [array("d", [0.1, 1e300]), array("d", [3.0, -0.0])]}
    scores = replace(_scores([0.5, 0.25], [1.0, 0.0]), parts=parts)
    path = tmp_path / "f.json"
    assert read(path, write(path, scores)).parts == parts
    write(path, _scores([0.5, 0.25]))
    assert "parts" not in json.loads(path.read_text())


def test_sums_that_are_cut_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write(path, replace(_scores([0.5, 0.25]), parts={"nats": [array("d", [0.1])]}))
    with pytest.raises(ReferenceFileError, match="unpack requires"):
        read(path, hashlib.sha256(path.read_bytes()).hexdigest())


def test_mmlu_with_three_runs_is_small(tmp_path: Path) -> None:
    write(tmp_path / "f", _scores(*[[1.0, 0.0] * 2052] * 3))
    assert (tmp_path / "f").stat().st_size < 36_000


@pytest.mark.parametrize("value", [float("nan"), 1.5, -0.1, float("inf")])
def test_a_gap_or_a_score_out_of_range_is_never_stored(tmp_path: Path, value: float) -> None:
    with pytest.raises(ReferenceFileError, match="missing or outside"):
        write(tmp_path / "f", _scores([0.0, value]))


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    sha256 = write(tmp_path / "f", _scores([0.0, 1.0]))
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes() + b" ")
    with pytest.raises(ReferenceFileError, match="not the file that was registered"):
        read(tmp_path / "f", sha256)
    with pytest.raises(ReferenceFileError, match="cannot be read"):
        read(tmp_path / "none", sha256)


def test_a_changed_prompt_has_another_key_and_a_subset_finds_its_places() -> None:
    samples = [Sample(id=str(i), prompt=f"p{i}", target="t") for i in range(5)]
    keys = [sample_key(sample) for sample in samples]
    assert {len(key) for key in keys} == {KEY_BYTES}
    other = sample_key(Sample(id="3", prompt="p3 ", target="t"))
    assert places(b"".join(keys), [keys[4], other, keys[0]]) == [4, None, 0]


@pytest.mark.parametrize("score", [0.0, 0.5, 1 / 3, 2 / 3, 0.25, 0.2, 5 / 12, 1.0])
def test_graded_scores_come_back_exactly(tmp_path: Path, score: float) -> None:
    found = read(tmp_path / "f.json", write(tmp_path / "f.json", _scores([score, 0.5])))
    assert found.runs[0][0] == pytest.approx(score, abs=1e-15)
    assert found.runs[0][1] == 0.5


@given(st.floats(0, 1))
def test_an_unchanged_answer_has_the_score_that_was_stored(
    tmp_path_factory: pytest.TempPathFactory, score: float
) -> None:
    path = tmp_path_factory.mktemp("s") / "f.json"
    stored = read(path, write(path, _scores([score, 0.5]))).runs[0][0]
    assert as_stored(score, 0.0, 1.0) == stored == as_stored(stored, 0.0, 1.0)
    assert stored == pytest.approx(score, abs=1 / LEVELS)


@pytest.mark.parametrize(("lo", "hi"), [(0.0, 100.0), (1.0, 3.0), (-1.0, 1.0)])
def test_a_score_of_any_range_is_stored_as_the_nearest_level(lo: float, hi: float) -> None:
    for share in (0.0, 0.1234, 0.25, 0.5, 1.0):
        score = lo + share * (hi - lo)
        assert as_stored(score, lo, hi) == pytest.approx(score, abs=(hi - lo) / LEVELS)


def test_a_file_that_is_none_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(b"{")
    with pytest.raises(ReferenceFileError) as caught:
        read(tmp_path / "f.json", hashlib.sha256(b"{").hexdigest())
    assert caught.value.hint == "Register the runs again."
