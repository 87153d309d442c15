"""Test the samples on a page: their index, their choice and their media."""

import base64
import gzip
import json
import random
import tracemalloc
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.cli._ending import save
from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.errors import RunFolderError
from serve_eval.report.page.chosen import (
    FELL,
    LEAST_SHARE,
    ROSE,
    SAME,
    TaskRows,
    choose_rows,
    compare_values,
    join_arms,
    share_evenly,
)
from serve_eval.report.page.columns import PageMedia, pack
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.samples.known import KnownTask, ReferenceScores
from serve_eval.report.samples.place import find_place
from serve_eval.report.samples.sample_index import (
    CATEGORIES,
    RowTable,
    SampleIndex,
    order_by_chance,
)
from serve_eval.report.samples.samples import SampleSource, read_samples
from serve_eval.schema import (
    HOLDOUT,
    Attempt,
    Failure,
    FailureKind,
    Message,
    Metric,
    Outcome,
    Response,
    Sample,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.media import describe_turn, media_url
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.prompts import keep_media, write_prompts
from serve_eval.storage.scores import ScoreRecord, encode, write_scores

WORST = st.sampled_from(list(Outcome))
LOST = Attempt(start_s=1.0, end_s=2.0, failure=FailureKind.TIMEOUT, status=None, request_id="r")


def _write(folder, records, scores):
    for part, lines in (
        ("samples", map(msgspec.json.encode, records)),
        ("scores", map(encode, scores)),
    ):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "t.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return SampleSource(run=folder, task="t")


def _answer(name, *, cut=False, start_s=0.0):
    reason = "length" if cut else "stop"
    attempt = Attempt(start_s=start_s, end_s=start_s, failure=None, status=200, request_id="r")
    return Record(id=name, response=Response(text=name, finish_reason=reason, attempts=(attempt,)))


def _failure(name):
    failure = Failure(kind=FailureKind.TIMEOUT, message="late", attempts=(LOST,))
    return Record(id=name, failure=failure)


def _score(name, outcome, *, cut=False):
    value = float(outcome is Outcome.CORRECT)
    return ScoreRecord(id=name, outcome=outcome, value=value, target="x", truncated=cut)


events = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from(["answer", "cut", "failure", "withdrawn"])),
    max_size=12,
)


@given(events, st.dictionaries(st.sampled_from("abcdef"), WORST))
def test_the_index_agrees_with_reading_all_records(
    tmp_path_factory,
    events,
    outcomes,
):
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


def test_repeats_are_one_row_with_the_worst_of_them_and_the_first_score(tmp_path):
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


def test_some_answers_are_drawn_by_chance_in_the_order_of_their_starts(tmp_path):
    names = [f"q-{i}" for i in range(400)]
    records = [_answer(name, start_s=1000.0 - i) for i, name in enumerate(names)]
    source = _write(tmp_path, records, [_score(name, Outcome.WRONG) for name in names])
    index = SampleIndex(source, most_drawn=50)
    wanted = sorted(names, key=order_by_chance)[:50]
    starts = {name: 1000.0 - i for i, name in enumerate(names)}
    assert [one.started_s for one in index.drawn] == sorted(starts[name] for name in wanted)
    assert {one.outcome for one in index.drawn} == {"wrong"}
    assert index.requests == 400


def test_a_sample_takes_at_most_a_hundred_bytes(tmp_path):
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
def test_the_last_place_as_a_word_is_found_in_any_form(text, extracted, found):
    place = find_place(text, extracted)
    assert (None if place is None else text[place.start : place.end]) == found


def test_lines_and_places_are_counted():
    place = find_place("7 at first\nthen 8\n7 it is\n", "7")
    assert (place.start, place.line, place.lines, place.times) == (18, 3, 3, 2)


HEAD = "The same beginning with \U0001f600 in it. " * 10
SECRET = "a hold-out question and its answer"


def _unpack(packed):
    return json.loads(gzip.decompress(base64.b64decode(str(packed))))


def _task(folder, samples, answers, **known):
    samples_file(folder, "t").parent.mkdir(parents=True)
    (folder / "scores").mkdir()
    write_prompts(folder, "t", samples, str, texts=True)
    with Journal(samples_file(folder, "t")) as journal, write_scores(folder, "t") as scores:
        for sample, answer in zip(samples, answers, strict=True):
            journal.append(
                Record(id=sample.id, response=Response(text=answer, finish_reason="stop"))
            )
            value = float(answer == sample.target)
            outcome = Outcome.CORRECT if value else Outcome.WRONG
            scores.write(
                ScoreRecord(
                    id=sample.id, outcome=outcome, value=value, answer=answer, target=sample.target
                )
            )
    arms = {"": SampleSource(run=folder, task="t")}
    return PageTask(name="t", arms=arms, metric=Metric(), know=lambda _: KnownTask(**known))


def _rebuild(data):
    """Return the turns of each prompt as the page's script does, which counts UTF-16 units."""
    found, columns = [], data["prompts"]
    for parts, turns in zip(columns["rows"], columns["turns"], strict=True):
        whole = "".join(columns["parts"][part] for part in parts).encode("utf-16-le")
        said, place = [], 0
        for _, length in turns or [["", len(whole) // 2]]:
            said.append(whole[2 * place : 2 * (place + length)].decode("utf-16-le"))
            place += length
        found.append(said)
    return found


def test_prompts_come_back_whole_and_their_beginning_is_kept_once(tmp_path):
    samples = [
        Sample(id=f"s-{i}", prompt=f"{HEAD}Question {i} \U0001f680?", target="x") for i in range(9)
    ]
    turns = (Message(role="system", content=HEAD), Message(role="user", content="\U0001f600 hi"))
    samples.append(Sample(id="s-9", prompt=turns, target="x"))
    section = show_samples(SampleData([_task(tmp_path, samples, ["x"] * 10)]))
    data = _unpack(section.value)
    assert _rebuild(data) == [
        *([f"{HEAD}Question {i} \U0001f680?"] for i in range(9)),
        [HEAD, "\U0001f600 hi"],
    ]
    assert json.dumps(data["prompts"], ensure_ascii=False).count(HEAD) <= 3
    assert data["answers"]["text"]["values"] == ["x"]


def test_what_is_wrong_comes_first_and_scores_that_changed_are_named(tmp_path):
    samples = [Sample(id=f"s-{i}", prompt="?", target="x") for i in (10, 2, 3)]
    scores = {"s-2": (1.0, 0.0), "s-3": (0.0, 0.0), "s-10": (1.0, 1.0)}
    reference = ReferenceScores(scores=scores, lo=0.0, hi=1.0)
    task = _task(tmp_path, samples, ["x", "y", "x"], reference=reference)
    data = SampleData([task]).to_json(None, None)
    assert data["id"] == ["s-2", "s-3", "s-10"]
    assert data["order"] == [0, 1, 2]
    assert data["flip"] == [2, 3, 1]
    assert data["before"] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)]


def test_no_text_of_a_holdout_sample_is_in_the_page(tmp_path):
    samples = [
        Sample(id="open", prompt="?", target="x"),
        Sample(id="held", prompt=SECRET, target=SECRET, metadata={HOLDOUT: "1"}),
    ]
    task = _task(tmp_path, samples, ["x", SECRET], body={"model": "m"})
    section = show_samples(SampleData([task]))
    data = _unpack(section.value)
    assert data["hidden"] == [data["id"].index("held")]
    assert SECRET not in json.dumps(data)


def test_long_texts_are_shortened_until_the_page_is_small(tmp_path):
    chosen = random.Random(1)
    texts = ["".join(chosen.choices("abcdefgh ", k=40_000)) for _ in range(8)]
    samples = [Sample(id=f"s-{i}", prompt="?", target="x") for i in range(8)]
    data = SampleData([_task(tmp_path, samples, texts)])
    whole, small = show_samples(data), show_samples(data, most_bytes=20_000)
    assert _unpack(whole.value)["shortened"] == 0
    assert _unpack(whole.value)["answers"]["text"]["values"] == texts
    found = _unpack(small.value)
    assert found["shortened"] == 16  # the answer and what was extracted, of each sample
    assert len(str(small.value)) < 4 / 3 * 20_000 + 4
    for text, kept in zip(texts, found["answers"]["text"]["values"], strict=True):
        begin, said, end = kept.split("\n")
        assert text.startswith(begin)
        assert text.endswith(end)
        left = len(text) - len(begin) - len(end)
        assert said == f"[… {left:,} characters left out …]"


def test_halves_of_surrogate_pairs_are_packed_as_they_are():
    assert _unpack(pack({"x": "\ud83d and \udc00"})) == {"x": "\ud83d and \udc00"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RunFolderError("no room"), "no room"),
        (ValueError("odd"), "ValueError: odd"),
        (OSError("gone"), "OSError: gone"),
    ],
)
def test_a_page_that_cannot_be_written_is_a_warning(error, told, capsys):
    def write():
        raise error

    save(write)
    assert capsys.readouterr().err == (f"warning: the page could not be written: {told}\n")


def _rows(groups, first=0):
    keys = np.arange(first, first + len(groups))
    order = np.array([order_by_chance(f"q-{key}") for key in keys], np.uint32)
    group = np.array(groups, np.int64)
    return TaskRows(keys=keys, order=order, group=group, sides={}, answers=len(groups))


@given(st.lists(st.integers(0, 9), max_size=300), st.integers(0, 200))
def test_each_group_keeps_a_tenth_and_the_first_groups_get_the_rest(groups, most):
    [chosen] = choose_rows([_rows(groups)], most)
    if len(groups) <= most:
        assert chosen is None
        return
    assert len(chosen) == len(set(chosen.tolist())) == most
    there, taken = Counter(groups), Counter(groups[key] for key in chosen.tolist())
    for group, n in there.items():
        assert taken[group] >= min(n, most // LEAST_SHARE)
    first = min(there)
    above = {group: n for group, n in taken.items() if n > most // LEAST_SHARE}
    if taken[first] < there[first]:
        assert set(above) <= {first}


def test_chance_takes_the_same_prompts_each_time_and_from_everywhere():
    [once], [again] = (choose_rows([_rows([9] * 10_000)], 1000) for _ in range(2))
    assert once is not None
    assert again is not None
    assert np.array_equal(once, again)
    thirds = Counter((once // 3334).tolist())
    assert all(250 < n < 420 for n in thirds.values())


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 200))
def test_the_places_are_shared_evenly_among_tasks(wanted, most):
    shares = share_evenly(wanted, most)
    assert sum(shares) == min(most, sum(wanted))
    for share, want in zip(shares, wanted, strict=True):
        assert share <= want
        if share < want:
            assert share + 1 >= max(shares)


def test_several_tasks_are_bounded_together():
    tasks = [_rows([9] * n, first) for n, first in ((30, 0), (500, 100), (900, 1000))]
    few, *chosen = choose_rows(tasks, 130)
    assert few is None
    assert [len(one) for one in chosen if one is not None] == [50, 50]


def test_of_repeated_prompts_fewer_are_shown():
    task = _rows([9] * 100)
    repeated = TaskRows(
        keys=task.keys, order=task.order, group=task.group, sides={}, answers=16 * 100
    )
    [chosen] = choose_rows([repeated], 160)
    assert chosen is not None
    assert len(chosen) == 10


def _table(names):
    keys = np.array(sorted(names), np.int64)
    codes = np.array([CATEGORIES.index(names[key][0]) for key in sorted(names)], np.uint8)
    value = np.array([names[key][1] for key in sorted(names)])
    return RowTable(
        keys=keys, order=keys.astype(np.uint32), category=codes, first=codes, value=value
    )


@pytest.mark.parametrize(
    ("a", "b", "side", "earlier"),
    [
        (("right", 1.0), ("wrong", 0.0), ("right", "wrong"), ("wrong", "right")),
        (("right, but cut off", 1.0), ("failed", np.nan), ("right", "missing"), None),
        (("not scored", np.nan), ("unreadable", 0.0), ("missing", "wrong"), None),
        (("partly right", 0.7), ("partly right", 0.2), ("wrong", "wrong"), ("wrong", "wrong")),
    ],
)
def test_what_changed_between_two_arms_is_counted_and_comes_first(
    a,
    b,
    side,
    earlier,
):
    same = ("right", 1.0)
    joined = join_arms(_table({1: same, 2: a}), _table({1: same, 2: b}), 2)
    assert joined.sides[side] == 1
    assert joined.sides["right", "right"] == 1
    assert sum(joined.sides.values()) == 2
    fell = bool(joined.group[1] < joined.group[0])
    assert fell == (earlier is not None)


def test_a_prompt_that_one_arm_lacks_is_missing_there():
    joined = join_arms(_table({1: ("right", 1.0)}), _table({2: ("wrong", 0.0)}), 1)
    assert joined.sides["right", "missing"] == joined.sides["missing", "wrong"] == 1


def test_changes_of_scores_have_codes():
    a, b = np.array([1.0, 0.0, 0.5, np.nan, 1.0]), np.array([0.0, 1.0, 0.5, 1.0, np.nan])
    assert compare_values(a, b).tolist() == [FELL, ROSE, SAME, 0, 0]


def _prompt(*parts):
    return (describe_turn(Message(role="user", content=parts)),)


def _keep(run, *parts):
    turn = Message(role="user", content=parts)
    keep_media(run, [Sample(id="1", prompt=(turn,), target="")])


def test_images_are_held_once_and_others_are_linked(tmp_path):
    _keep(tmp_path / "a", shape(), dot())
    media = PageMedia(tmp_path)
    elsewhere = VideoPart(video_url=VideoUrl(url="https://host/a.mp4"))
    media.add(0, _prompt(shape(), dot(), number(), elsewhere), [tmp_path / "a"])
    media.add(1, "a text", [tmp_path / "a"])
    media.add(2, _prompt(shape()), [tmp_path / "none", tmp_path / "a"])
    found = media.to_json()
    [(key, held)] = dict(found["images"]).items()
    assert held == media_url(shape())
    image = ["image: image/png, 707 bytes, sha256 " + key[:12], key, f"a/media/{key}.png"]
    rows = found["rows"]
    assert sorted(rows) == [0, 2]
    assert rows[2] == [image] == rows[0][:1]
    [video, sound, other] = rows[0][1:]
    assert video[0].startswith("video: video/mp4, 3,028 bytes, sha256 ")
    assert (video[1], video[2][:8], video[2][-4:]) == ("", "a/media/", ".mp4")
    assert sound[0].endswith(", not kept in the run folder")
    assert (sound[1:], other) == (["", ""], ["video, elsewhere", "", ""])


def test_a_page_elsewhere_links_nothing(tmp_path):
    _keep(tmp_path / "a", shape())
    for folder in (None, tmp_path / "b"):
        media = PageMedia(folder)
        media.add(0, _prompt(shape()), [tmp_path / "a"])
        [[[_, key, link]]] = dict(media.to_json()["rows"]).values()
        assert (len(key), link) == (64, "")


def test_images_beyond_the_room_are_linked_only(tmp_path):
    _keep(tmp_path, shape())
    media = PageMedia(tmp_path, most_images=706)
    media.add(0, _prompt(shape()), [tmp_path])
    assert media.to_json()["images"] == {}
    [[[_, key, link]]] = dict(media.to_json()["rows"]).values()
    assert (key, link[:6]) == ("", "media/")


def test_bytes_of_another_type_are_no_image(tmp_path):
    _keep(tmp_path, shape())
    [file] = (tmp_path / "media").iterdir()
    file.write_bytes(b"<svg onload='1'/>")
    media = PageMedia(tmp_path)
    media.add(0, _prompt(shape()), [tmp_path])
    assert media.to_json()["images"] == {}
