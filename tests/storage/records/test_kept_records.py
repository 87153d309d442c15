"""Test that prompts, media and scores are kept as they may be, and read back.

Any text of a model and any length of line is allowed.
"""

import hashlib
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from serve_eval.client.connection import SecretMask
from serve_eval.datasets.media import video_part
from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.errors import RunFolderError
from serve_eval.schema import (
    HOLDOUT,
    Connection,
    ImagePart,
    ImageUrl,
    MediaFile,
    Message,
    Outcome,
    Sample,
    TextPart,
)
from serve_eval.schema.media import describe, make_part
from serve_eval.storage.file_names import prompts_file, scores_file
from serve_eval.storage.prompts import (
    MOST_OF_ONE,
    OVERLAP,
    find_media,
    keep_media,
    merge_media,
    read_media,
    read_prompts,
    write_prompts,
)
from serve_eval.storage.scores import (
    ScoreRecord,
    as_on_file,
    find_score,
    read_scores,
    read_values,
    score_records,
    write_scores,
)

SECRET = "qX7-pL2_vN9.kR4~wT8"
MASK = SecretMask(Connection(), {"OPENAI_API_KEY": SECRET})


def _sample(name, prompt, **more):
    return Sample(id=name, prompt=prompt, target="", **more)


def _kept(run, *samples):
    write_prompts(run, "t", samples, MASK, texts=True)
    return list(read_prompts(run, "t"))


PIECES = st.lists(st.sampled_from(["examples " * 20, "more " * 60, 'é\n"\\', "Q", "日本 " * 70]))
TEXTS = PIECES.map("".join)
PROMPTS = st.one_of(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=3).map(
        lambda texts: tuple(Message(role="user", content=text) for text in texts)
    ),
)


@settings(max_examples=40)
@given(prompts=st.lists(PROMPTS, max_size=8))
def test_prompts_are_read_as_they_were_written(prompts, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    samples = [_sample(str(i), prompt) for i, prompt in enumerate(prompts)]
    assert [(one.id, one.prompt) for one in _kept(run, *samples)] == [
        (sample.id, sample.prompt) for sample in samples
    ]


@pytest.mark.parametrize("chat", [False, True])
def test_examples_that_many_prompts_share_are_kept_once(chat, tmp_path):
    def make(number):
        subject = number // 50
        system = "Answer the question with one letter. " * 11
        text = f"{system}{f'Example of subject {subject}. ' * 100}Question {number}?"
        prompt = (Message(role="user", content=text),) if chat else text
        return _sample(str(number), prompt)

    samples = [make(number) for number in range(150)]
    assert [one.prompt for one in _kept(tmp_path, *samples)] == [one.prompt for one in samples]
    file = prompts_file(tmp_path, "t")
    assert file.stat().st_size < 30_000  # three examples twice, and a line for each question
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("before", [0, 200, OVERLAP * 3])
def test_secrets_are_masked_wherever_they_are(before, tmp_path):
    head = "example " * (before // 8)
    cut = 10
    samples = [
        _sample("first", f"{head}{SECRET[:cut]}x"),
        _sample("second", f"{head}{SECRET}, and so on"),
        _sample("chat", (Message(role="system", content=f"{head} {SECRET}"),)),
        _sample("parts", (Message(role="user", content=(TextPart(f"see {SECRET}"),)),)),
        _sample("choices", "Which?", choices=("a", SECRET)),
        _sample("last", f"{head}{SECRET}, and so on again"),
    ]
    kept = {one.id: one for one in _kept(tmp_path, *samples)}
    assert SECRET.encode() not in prompts_file(tmp_path, "t").read_bytes()
    assert SECRET not in repr(kept)
    assert str(kept["second"].prompt).endswith("***, and so on")
    assert kept["choices"].choices == ("a", "***")


def test_images_are_kept_as_a_description(tmp_path):
    image = ImagePart(ImageUrl("data:image/png;base64,AAAA"))
    other = ImagePart(ImageUrl("data:image/png;base64,AAAB"))
    parts = (TextPart("What is it?"), image, other)
    [kept] = _kept(tmp_path, _sample("1", (Message(role="user", content=parts),)))
    assert isinstance(kept.prompt, tuple)
    files = [part for part in kept.prompt[0].images if isinstance(part, MediaFile)]
    assert [(one.media_type, one.size, one.path) for one in files] == [("image/png", 3, "")] * 2
    assert files[0].sha256 == hashlib.sha256(b"\0\0\0").hexdigest() != files[1].sha256
    assert kept.prompt[0].text == "What is it?"


def test_of_hold_out_samples_only_the_ids_are_kept(tmp_path):
    shared = "example " * 50
    samples = [
        _sample("1", f"{shared}one"),
        _sample("2", f"{shared}hidden", metadata={HOLDOUT: "yes"}, choices=("hidden",)),
        _sample("3", f"{shared}two"),
    ]
    kept = _kept(tmp_path, *samples)
    assert [one.prompt for one in kept] == [f"{shared}one", None, f"{shared}two"]
    assert b"hidden" not in prompts_file(tmp_path, "t").read_bytes()
    write_prompts(tmp_path, "t", samples, MASK, texts=False)
    assert [one.id for one in read_prompts(tmp_path, "t")] == ["2"]


def test_choices_have_the_context_of_their_own(tmp_path):
    sample = _sample("1", "Which?", choices=(" a", " b"), heads=("x", "y"))
    assert _kept(tmp_path, sample)[0].choices == ("x a", "y b")


def test_a_damaged_line_is_told_with_its_place(tmp_path):
    assert list(read_prompts(tmp_path, "t")) == []
    _kept(tmp_path, _sample("1", "one"))
    file = prompts_file(tmp_path, "t")
    file.write_bytes(file.read_bytes() + b'{"id":\n')
    with pytest.raises(RunFolderError, match=r"t\.jsonl:2: a damaged record"):
        list(read_prompts(tmp_path, "t"))


def test_memory_does_not_grow_with_the_number_of_prompts(tmp_path):
    def make(n):
        return (_sample(str(i), f"{'example ' * 100}{i}") for i in range(n))

    peaks = []
    tracemalloc.start()
    try:
        for n in (50, 1000):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            write_prompts(tmp_path, "t", make(n), MASK, texts=True)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] + 50_000


def _sample_media(name, *parts, **metadata):
    turn = Message(role="user", content=parts)
    return Sample(id=name, prompt=(turn,), target="", metadata=metadata)


def _names(run):
    return sorted(path.suffix for path in (run / "media").glob("*"))


def test_each_medium_is_kept_once_by_its_checksum(tmp_path):
    samples = [_sample_media("1", shape(), number(), dot()), _sample_media("2", shape())]
    keep_media(tmp_path, [*samples, Sample(id="3", prompt="text", target="")])
    assert _names(tmp_path) == [".mp4", ".png", ".wav"]
    for part in (shape(), number(), dot()):
        path = find_media(tmp_path, describe(part))
        assert path is not None
        content = read_media(path)
        assert content is not None
        assert hashlib.sha256(content).hexdigest() == path.stem
        assert path.stat().st_mode & 0o777 == 0o600
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "media").iterdir()}
    keep_media(tmp_path, samples)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "media").iterdir()} == kept


def test_large_media_and_those_of_a_hold_out_are_not_kept(tmp_path):
    large = tmp_path / "large.mp4"
    large.write_bytes(b"\x00\x00\x00\x20ftypisom" + bytes(MOST_OF_ONE))
    hidden = _sample_media("2", shape(), **{HOLDOUT: "1"})
    keep_media(tmp_path / "run", [_sample_media("1", video_part(large)), hidden])
    assert not (tmp_path / "run").exists()
    assert find_media(tmp_path / "run", describe(shape())) is None


def test_a_folder_is_not_filled_beyond_its_size(tmp_path):
    images = [make_part("image_url", "image/gif", b"GIF8%04d" % i) for i in range(9)]
    keep_media(tmp_path, [_sample_media("1", *images[:3])], most_of_run=32)
    assert len(_names(tmp_path)) == 3
    keep_media(tmp_path, [_sample_media("2", *images)], most_of_run=32)
    assert len(_names(tmp_path)) == 4


def test_nothing_but_the_bytes_of_a_checksum_is_read(tmp_path):
    run = tmp_path / "run"
    keep_media(run, [_sample_media("1", shape())])
    part = describe(shape())
    assert isinstance(part, MediaFile)
    path = find_media(run, part)
    assert path is not None
    for sha256, media_type in (("../../x", "image/png"), (part.sha256, "image/../x")):
        changed = msgspec.structs.replace(part, sha256=sha256, media_type=media_type)
        assert find_media(run, changed) is None
    secret = tmp_path / path.name
    path.rename(secret)
    path.symlink_to(secret)
    assert find_media(run, part) is None
    assert read_media(path) is None
    path.unlink()
    path.write_bytes(b"another")
    assert read_media(path) is None


def test_shards_are_joined(tmp_path):
    shards = [tmp_path / "1", tmp_path / "2", tmp_path / "none"]
    keep_media(shards[0], [_sample_media("1", shape())])
    keep_media(shards[1], [_sample_media("2", shape(), dot())])
    (tmp_path / "2" / "media" / "report.html").write_text("not a medium")
    merge_media(shards, tmp_path / "run")
    assert _names(tmp_path / "run") == [".mp4", ".png"]


TASK = "cases:mine"
TEXTS_SCORES = st.text(st.characters(), max_size=40)  # with halves of surrogate pairs
RECORDS = st.builds(
    ScoreRecord,
    id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    outcome=st.sampled_from(Outcome),
    value=st.floats(allow_nan=False, allow_infinity=False),
    answer=st.none() | TEXTS_SCORES,
    target=TEXTS_SCORES,
    truncated=st.booleans(),
    parts=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), st.floats(0, 1), max_size=3
    ),
    mode=st.just(UNSET) | TEXTS_SCORES,
)


def _record(name, **fields):
    plain = ScoreRecord(
        id=name, outcome=Outcome.WRONG, value=0.5, answer="12", target="18", parts={"strict": 0.0}
    )
    return msgspec.structs.replace(plain, **fields)


def _write(run, *records):
    file = scores_file(run, TASK)
    file.parent.mkdir(exist_ok=True)
    with write_scores(run, TASK) as scores:
        for record in records:
            scores.write(record)
    return file


@settings(max_examples=40)
@given(st.lists(RECORDS, max_size=6, unique_by=lambda record: record.id))
def test_scores_come_back_as_they_were_written(records):
    with TemporaryDirectory() as folder:
        _write(Path(folder), *records)
        assert list(score_records(Path(folder), TASK)) == [as_on_file(record) for record in records]
        assert read_values(Path(folder), TASK) == {record.id: record.value for record in records}


def test_a_line_of_the_file_has_its_fields_in_order(tmp_path):
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
def test_lines_longer_than_what_is_read_at_once_are_whole(tmp_path, length):
    records = [
        _record("a", answer="x" * length),
        _record("b"),
        _record("c", answer="y" * length),
        _record("d"),
    ]
    _write(tmp_path, *records)
    assert list(read_scores(tmp_path, TASK).values()) == records


def test_a_torn_last_line_is_an_error_unless_the_run_may_have_been_killed(tmp_path):
    file = _write(tmp_path, _record("a"), _record("b"))
    file.write_bytes(file.read_bytes()[:-20])
    assert set(read_scores(tmp_path, TASK, unfinished=True)) == {"a"}
    for read in (read_scores, read_values):
        with pytest.raises(RunFolderError, match=f"{file} cannot be read") as refused:
            read(tmp_path, TASK)
        assert refused.value.hint == f"Write it again: serve-eval judge {tmp_path}"


def test_scores_that_are_not_there_are_an_error_unless_the_run_may_have_been_killed(
    tmp_path,
):
    assert read_scores(tmp_path, TASK, unfinished=True) == {}
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_scores(tmp_path, TASK)


@pytest.mark.parametrize(
    "damage",
    [b"{}\n", b"nonsense\n", b'{"id":"a","outcome":"no such","value":1,"target":""}\n', b"\xff\n"],
)
def test_a_damaged_line_is_told(tmp_path, damage):
    file = _write(tmp_path, _record("a"))
    file.write_bytes(file.read_bytes() + damage)
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_scores(tmp_path, TASK, unfinished=True)


@settings(max_examples=40)
@given(st.lists(RECORDS, max_size=6), st.sampled_from(["a", 'a"', "\\", "ä", "x" * 9]))
def test_the_score_of_one_sample_is_its_last_one(records, name):
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


def test_only_the_line_of_the_wanted_sample_is_decoded(tmp_path):
    file = _write(tmp_path, _record("a"))
    file.write_bytes(b"nonsense\n" + file.read_bytes() + b'{"id":"b",\n{"id":"a",')
    assert find_score(tmp_path, TASK, "a") == _record("a")
    with pytest.raises(RunFolderError, match="cannot be read"):
        find_score(tmp_path, TASK, "b")


def test_settled_scores_are_the_last_ones_of_the_samples_that_stand(tmp_path):
    scores_file(tmp_path, TASK).parent.mkdir()
    with write_scores(tmp_path, TASK) as scores:
        for name, value in (("a", 0.0), ("b", 0.0), ("a", 1.0), ("c", 1.0)):
            scores.write(_record(name, value=value))
        scores.settle(["c", "never scored", "a"])
        scores.write(_record("d", value=2.0))
    assert read_values(tmp_path, TASK) == {"c": 1.0, "a": 1.0, "d": 2.0}
    assert len(list(score_records(tmp_path, TASK))) == 3
