"""Test what a reference keeps of its answers: samples, lengths, damage and cuts."""

import asyncio
import hashlib
import json
from array import array
from base64 import b64decode
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ReferenceFileError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.protocol.sampling_fields import KEY_BYTES, sample_key
from serve_eval.report.summary import SummaryTask
from serve_eval.report.summary.rows import describe_cuts
from serve_eval.schema import Limits, Plan, Sample, Spec
from serve_eval.verdicts.reference_samples import (
    LEVELS,
    LONGEST,
    SampleScores,
    StoredAnswers,
    as_stored,
    pack,
    places,
    read,
    unpack,
    write,
)
from serve_eval.verdicts.validity import CUT
from serve_eval.workflows.references import register


def _scores(*runs, lo=0.0, hi=1.0):
    keys = b"".join(
        sample_key(Sample(id=str(i), prompt="p", target="t")) for i in range(len(runs[0]))
    )
    return SampleScores(
        task="t", lo=lo, hi=hi, keys=keys, runs=tuple(array("d", run) for run in runs)
    )


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=70), st.integers(1, 3))
def test_right_or_wrong_scores_come_back_as_they_were(tmp_path_factory, run, k):
    path = tmp_path_factory.mktemp("s") / "x" / "f.json"
    scores = _scores(*[run] * k)
    assert read(path, write(path, scores)) == scores
    assert json.loads(path.read_text())["encoding"] == "bitmap"


@given(st.lists(st.floats(-3, 5), min_size=1, max_size=40))
def test_other_scores_come_back_to_sixteen_bits(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("s") / "f.json"
    found = read(path, write(path, _scores([*run, 0.5], lo=-3.0, hi=5.0)))
    assert list(found.runs[0]) == pytest.approx([*run, 0.5], abs=8.0 / LEVELS)


def test_sums_come_back_exactly_and_scores_without_them_have_no_field(tmp_path):
    parts = {"nats": [array("d", [0.1, 1e300]), array("d", [3.0, -0.0])]}
    scores = replace(_scores([0.5, 0.25], [1.0, 0.0]), parts=parts)
    path = tmp_path / "f.json"
    assert read(path, write(path, scores)).parts == parts
    write(path, _scores([0.5, 0.25]))
    assert "parts" not in json.loads(path.read_text())


def test_sums_that_are_cut_are_refused(tmp_path):
    path = tmp_path / "f.json"
    write(path, replace(_scores([0.5, 0.25]), parts={"nats": [array("d", [0.1])]}))
    with pytest.raises(ReferenceFileError, match="unpack requires"):
        read(path, hashlib.sha256(path.read_bytes()).hexdigest())


def test_mmlu_with_three_runs_is_small(tmp_path):
    write(tmp_path / "f", _scores(*[[1.0, 0.0] * 2052] * 3))
    assert (tmp_path / "f").stat().st_size < 36_000


@pytest.mark.parametrize("value", [float("nan"), 1.5, -0.1, float("inf")])
def test_a_gap_or_a_score_out_of_range_is_never_stored(tmp_path, value):
    with pytest.raises(ReferenceFileError, match="missing or outside"):
        write(tmp_path / "f", _scores([0.0, value]))


def test_a_file_that_was_changed_is_refused(tmp_path):
    sha256 = write(tmp_path / "f", _scores([0.0, 1.0]))
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes() + b" ")
    with pytest.raises(ReferenceFileError, match="not the file that was registered"):
        read(tmp_path / "f", sha256)
    with pytest.raises(ReferenceFileError, match="cannot be read"):
        read(tmp_path / "none", sha256)


def test_a_changed_prompt_has_another_key_and_a_subset_finds_its_places():
    samples = [Sample(id=str(i), prompt=f"p{i}", target="t") for i in range(5)]
    keys = [sample_key(sample) for sample in samples]
    assert {len(key) for key in keys} == {KEY_BYTES}
    other = sample_key(Sample(id="3", prompt="p3 ", target="t"))
    assert places(b"".join(keys), [keys[4], other, keys[0]]) == [4, None, 0]


@pytest.mark.parametrize("score", [0.0, 0.5, 1 / 3, 2 / 3, 0.25, 0.2, 5 / 12, 1.0])
def test_graded_scores_come_back_exactly(tmp_path, score):
    found = read(tmp_path / "f.json", write(tmp_path / "f.json", _scores([score, 0.5])))
    assert found.runs[0][0] == pytest.approx(score, abs=1e-15)
    assert found.runs[0][1] == 0.5


@given(st.floats(0, 1))
def test_an_unchanged_answer_has_the_score_that_was_stored(tmp_path_factory, score):
    path = tmp_path_factory.mktemp("s") / "f.json"
    stored = read(path, write(path, _scores([score, 0.5]))).runs[0][0]
    assert as_stored(score, 0.0, 1.0) == stored == as_stored(stored, 0.0, 1.0)
    assert stored == pytest.approx(score, abs=1 / LEVELS)


@pytest.mark.parametrize(("lo", "hi"), [(0.0, 100.0), (1.0, 3.0), (-1.0, 1.0)])
def test_a_score_of_any_range_is_stored_as_the_nearest_level(lo, hi):
    for share in (0.0, 0.1234, 0.25, 0.5, 1.0):
        score = lo + share * (hi - lo)
        assert as_stored(score, lo, hi) == pytest.approx(score, abs=(hi - lo) / LEVELS)


def test_a_file_that_is_none_says_what_to_do(tmp_path):
    (tmp_path / "f.json").write_bytes(b"{")
    with pytest.raises(ReferenceFileError) as caught:
        read(tmp_path / "f.json", hashlib.sha256(b"{").hexdigest())
    assert caught.value.hint == "Register the runs again."


NINE = StoredAnswers(
    counted=True,
    lengths=(1, 256, LONGEST, LONGEST + 9, 0, 7, 8, 9, 10),
    cut=(True, False, True, False, False, False, False, False, True),
    looping=(False,) * 7 + (True, False),
    shared=(False,) * 9,
    scripts=frozenset({"LATIN", "GREEK"}),
)


@st.composite
def answers(draw):
    n = draw(st.integers(0, 40))
    flags = st.lists(st.booleans(), min_size=n, max_size=n).map(tuple)
    lengths = st.lists(st.integers(0, LONGEST), min_size=n, max_size=n).map(tuple)
    return StoredAnswers(
        counted=draw(st.booleans()),
        lengths=draw(lengths),
        cut=draw(flags),
        looping=draw(flags),
        shared=draw(flags),
        scripts=draw(st.frozensets(st.sampled_from(["LATIN", "HAN", "GREEK"]))),
        cut_by_run=draw(st.lists(flags, max_size=3).map(tuple)),
    )


@given(answers())
def test_answers_come_back_as_they_were(known):
    assert unpack(pack(known), len(known.lengths)) == known


def test_the_form_is_that_of_files_which_are_there():
    packed = pack(NINE)
    assert b64decode(packed.lengths)[:8] == b"\x01\x00\x00\x01\xff\xff\xff\xff"
    assert (b64decode(packed.cut), b64decode(packed.looping)) == (b"\x05\x01", b"\x80\x00")
    assert (packed.unit, packed.scripts) == ("tokens", ["GREEK", "LATIN"])
    assert pack(replace(NINE, counted=False)).unit == "characters"


def test_the_cuts_of_all_runs_are_known_or_none_are():
    other = tuple(not one for one in NINE.cut)
    known = replace(NINE, cut_by_run=(NINE.cut, other, NINE.cut))
    assert known.list_cuts(3) == (NINE.cut, other, NINE.cut)
    assert known.take([7, 0]).cut_by_run == ((False, True), (True, False), (False, True))
    assert NINE.list_cuts(1) == (NINE.cut,)  # a file of one run, of before they were kept
    assert NINE.list_cuts(3) is None


def test_the_answers_to_some_prompts_are_taken_in_their_order():
    found = NINE.take([7, 0])
    assert (found.lengths, found.cut, found.looping) == ((9, 1), (False, True), (True, False))
    assert (found.shared, found.scripts) == ((False, False), NINE.scripts)


@pytest.mark.parametrize(
    ("damage", "n", "why"),
    [
        ({}, 8, "lengths do not belong to 8"),
        ({"unit": "words"}, 9, "lengths do not belong to 9"),
        ({"cut": "AA=="}, 9, "a bitmap of 1 bytes does not hold 9 flags"),
        ({"shared": "AAAA"}, 9, "a bitmap of 3 bytes does not hold 9 flags"),
    ],
)
def test_data_of_another_number_of_answers_is_refused(damage, n, why):
    with pytest.raises(ValueError, match=why):
        unpack(msgspec.structs.replace(pack(NINE), **damage), n)


N = 60


def _run(folder, references=None, *, repeats=1):
    """Ask the embedded model, which needs more than 30 tokens for many problems."""

    async def ask():
        async with serve_app(create_app(WEIGHTS, {"m": "none"})) as url:
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=(Spec(name="word_problems", options={"num_samples": N, "max_tokens": 30}),),
                limits=Limits(concurrency=32),
                repeats=repeats,
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            report = await evaluate(plan, folder, environ={})
            return report.tasks[0]

    return asyncio.run(ask())


def _find_row(task):
    [(_, told)] = describe_cuts(SummaryTask(result=task.result, verdict=task.verdict))
    return told


@pytest.mark.parametrize("runs", [1, 3])
def test_equal_answers_have_equal_bounds_for_any_number_of_runs(runs, tmp_path):
    """Fails if only the first run's cut answers count as right: the bound shrinks with runs."""
    _run(tmp_path / "run", repeats=runs)
    register([tmp_path / "run"], tmp_path / "references")
    task = _run(tmp_path / "again", tmp_path / "references")
    effect = task.verdict.cut
    assert effect.cut > 5
    assert (effect.reference_cut, effect.reference_answers) == (runs * effect.cut, runs * N)
    assert effect.reference_value == pytest.approx(effect.value)
    assert f"reference: {runs * effect.cut} of {runs * N} cut, " in _find_row(task)
    [warning] = [line for line in task.verdict.warnings if line.startswith(CUT)]
    whose = "the reference's 3 runs" if runs == 3 else "the reference were"
    assert "this PASS could be FAIL" in warning
    assert whose in warning

    if runs == 3:
        _forget_cuts(tmp_path / "references")
        task = _run(tmp_path / "old", tmp_path / "references")
        assert task.verdict.cut.reference_value is None
        assert f"reference: {effect.cut} of {N} cut in its first run, the others" in _find_row(task)
        assert not any(line.startswith(CUT) for line in task.verdict.warnings)


def _forget_cuts(references):
    """Make the files of a reference those of a version that kept the first run's cuts alone."""
    [samples] = (references / "samples").iterdir()
    content = msgspec.json.decode(samples.read_bytes())
    del content["answers"]["cut_by_run"]
    old = samples.read_bytes()
    samples.write_bytes(msgspec.json.encode(content))
    [entry] = references.glob("*.yaml")
    digests = [hashlib.sha256(data).hexdigest() for data in (old, samples.read_bytes())]
    assert digests[0] in entry.read_text()
    entry.write_text(entry.read_text().replace(*digests))
