"""Test tasks about videos and mixed media."""

import random
from collections import Counter
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.protocol.sampling_fields import fingerprint
from serve_eval.schema import (
    MEDIUM,
    DataRoots,
    ImagePart,
    InputAudioPart,
    MediaFile,
    Outcome,
    Response,
    TextPart,
)
from serve_eval.tasks._mixed_modality import (
    Item,
    choose_questions,
    mixed_modality_omni,
    mixed_modality_omni_alone,
    mixed_modality_qwen_vl,
    mixed_modality_video_audio_omni,
    read_items,
    request_text,
)
from serve_eval.tasks._recordings import VideoSettings
from serve_eval.tasks.videomme import task
from tests.tasks.made_data import png, wav, write_jsonl
from tests.tasks.made_suites import grey_of, write_video


def _row(**more):
    row = {"sample_id": "001-1", "video_path": "v/1.avi", "question": "What moves?"}
    return {**row, "options": ["A. a cat", "b) A dog", " it ", "none"], "answer": " b ", **more}


def _load(folder, *rows, **options):
    write_jsonl(folder / "annotations.jsonl", rows)
    if not (folder / "v/1.avi").exists():
        write_video(folder / "v/1.avi", 22)
    return task(**options).load(DataRoots(roots=(folder,)), len(rows))


def _parts(sample):
    [turn] = sample.prompt
    *media, text = turn.content
    assert isinstance(text, TextPart)
    return [part for part in media if isinstance(part, MediaFile)], text.text


def test_eight_frames_stand_before_the_question(tmp_path):
    [sample] = _load(tmp_path, _row()).samples
    frames, text = _parts(sample)
    assert [grey_of(Path(one.path)) for one in frames] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert {(one.form, one.media_type) for one in frames} == {("image_url", "image/png")}
    assert text == (
        "Answer the question based on the video. Select the best option. Respond with only the"
        " option letter (A, B, C, or D).\n\nQuestion: What moves?\nOptions:\n"
        "A. a cat\nb) A dog\nC. it\nD. none\nAnswer:"
    )
    assert (sample.id, sample.target) == ("001-1", "B")


def test_or_the_video_itself(tmp_path):
    [sample] = _load(tmp_path, _row(), send="video").samples
    [video], _ = _parts(sample)
    assert (video.form, video.media_type) == ("video_url", "video/x-msvideo")
    assert Path(video.path) == tmp_path / "v/1.avi"
    assert task(send="video", num_frames=3).protocol["send"] == "video"
    assert "num_frames" not in task(send="video").protocol


def test_the_fingerprint_covers_the_video_and_its_frames(tmp_path):
    def told(**options):
        return fingerprint(task(**options), _load(tmp_path, _row(), **options))

    settings = (
        {},
        {"num_frames": 4},
        {"frame_format": "jpeg"},
        {"send": "video"},
    )
    before = [told(**one) for one in settings]
    assert len({one["samples"] for one in before}) == 4
    assert before == [told(**one) for one in settings]
    write_video(tmp_path / "v/1.avi", 22, first=1)
    for was, one in zip(before, settings, strict=True):
        assert told(**one)["samples"] != was["samples"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("The answer is (b).", "B"),
        ("It is a dog: B", "A"),
        ("Because", None),
        ("E or D", "D"),
        ("", None),
    ],
)
def test_the_first_letter_is_the_answer(tmp_path, text, letter):
    [sample] = _load(tmp_path, _row(), send="video").samples
    score = task().score(sample, Response(text=text, finish_reason="stop"))
    assert (score.answer, score.value) == (letter, float(letter == "B"))
    assert (score.outcome is Outcome.UNPARSED) == (letter is None)


def test_the_value_is_broken_down_by_known_columns(data_root):
    dataset = task().load(DataRoots(roots=(data_root,)), 300)
    table = task().breakdown((sample, 1.0) for sample in dataset.samples)
    assert table["duration"] == {"short": {"value": 100.0, "scored": 300}}
    assert sorted(table) == ["domain", "duration"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(answer="E"), "annotations.jsonl: 001-1: the answer 'E' is not A, B, C or D"),
        (_row(options="A or B"), "row 1 has no list of texts in column options"),
        (_row(question=None), "row 1: question is empty, not a text"),
        (_row(video_path="v/2.avi"), "v/2.avi: No such file"),
        (_row(video_path="annotations.jsonl"), "annotations.jsonl: cannot be read as a video"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_a_file_that_is_no_video_is_not_sent(tmp_path):
    with pytest.raises(DatasetError, match="jsonl: not a MP4"):
        _load(tmp_path, _row(video_path="annotations.jsonl"), send="video")


def test_too_few_lines_and_wrong_options(tmp_path):
    _load(tmp_path, _row())
    with pytest.raises(DatasetError, match="has 1 lines; 2 are needed"):
        task().load(DataRoots(roots=(tmp_path,)), 2)
    with pytest.raises(PlanError, match="must be 1 or more"):
        task(num_frames=0)


SUBJECTS = ("Accounting", "Agriculture")


def _write(folder, count):
    """Write that many questions of each medium, and rows that cannot be used."""
    for subject in SUBJECTS:
        images = [
            {
                "id": f"{subject}_{i}",
                "question": "Which is <image 1>?",
                "question_type": "multiple-choice",
                "options": "['one', 'two']",
                "answer": "B",
                "image_1": "1.png",
            }
            for i in range(count + 4)
        ]
        unusable = [
            {**images[0], "id": "no image", "image_1": None},
            {**images[0], "id": "a number", "options": "[]", "answer": "24/7"},
        ]
        by_word = {**images[0], "id": "by word", "options": "[]", "answer": "Vitamin C"}
        place = folder / "mmmu" / subject
        write_jsonl(place / "validation.jsonl", [*unusable, by_word, *images])
        (place / "1.png").write_bytes(png(1))
    sounds = [{"audio_id": "no words", "normalized_text": " ", "audio": None}]
    sounds += [
        {"audio_id": f"s{i}", "raw_text": f"So {i} it is", "audio": "1.wav"} for i in range(count)
    ]
    write_jsonl(folder / "voxpopuli/en/test.jsonl", sounds)
    (folder / "voxpopuli/en/1.wav").write_bytes(wav(440))
    videos = [
        {
            "sample_id": f"v{i}",
            "video_path": "1.avi",
            "question": "What moves?",
            "options": ["A. a", "b", "c", "d"],
            "answer": "D",
        }
        for i in range(count)
    ]
    write_jsonl(folder / "videomme/annotations.jsonl", videos)
    write_video(folder / "videomme/1.avi", 8)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    _write(folder, 6)
    return folder


def _load_mixed_modality(root, task):
    assert task.hypothesis.num_samples is not None
    return task.load(DataRoots(roots=(root,)), task.hypothesis.num_samples)


def _seen(sample):
    [turn] = sample.prompt
    *media, text = turn.content
    assert isinstance(text, TextPart)
    kinds = []
    for part in media:
        if isinstance(part, MediaFile):
            frame = part.form == "image_url"
            kinds.append(f"frame {grey_of(Path(part.path))}" if frame else part.form)
        else:
            assert isinstance(part, ImagePart | InputAudioPart)
            kinds.append("image" if isinstance(part, ImagePart) else "sound")
    return kinds, text.text


FRAMES = [f"frame {i}" for i in range(8)]


def test_parts_come_in_the_order_image_sound_video_text(root):
    dataset = _load_mixed_modality(root, mixed_modality_omni(num_samples=6))
    questions = {
        "image": "Which is <image 1>?\nOptions:\nA. one\nB. two\n",
        "audio": "Transcribe the spoken audio exactly.",
        "video": "What moves?\nOptions:\nA. a\nB. b\nC. c\nD. d\n",
    }
    for sample in dataset.samples:
        kinds, text = _seen(sample)
        assert kinds in ([["image", form, *FRAMES] for form in ("sound", "input_audio")])
        medium = sample.metadata[MEDIUM]
        assert text.startswith(
            "You are given one image, one audio clip, and one video in this single request.\nThe"
            " non-target media are random distractors.\nAnswer only the"
            f" {medium} question below.\n\n"
        )
        if "by word" not in sample.id or medium != "image":
            assert questions[medium] in text
        assert text.endswith(
            "exactly.\n" if medium == "audio" else "\nRespond with only the option letter.\n"
        )
    assert Counter(one.metadata[MEDIUM] for one in dataset.samples) == {
        "image": 2,
        "audio": 2,
        "video": 2,
    }


def test_the_control_asks_the_same_with_the_medium_alone(root):
    mixed = _load_mixed_modality(root, mixed_modality_omni(num_samples=6))
    alone = _load_mixed_modality(root, mixed_modality_omni_alone(num_samples=6))
    shown = {
        "image": (["image"], "one image"),
        "audio": (["input_audio"], "one audio clip"),
        "video": (FRAMES, "one video"),
    }
    for one, other in zip(mixed.samples, alone.samples, strict=True):
        assert (one.id, one.target, one.metadata) == (other.id, other.target, other.metadata)
        kinds, text = _seen(other)
        wanted, name = shown[other.metadata[MEDIUM]]
        assert kinds == wanted
        assert text.startswith(
            f"You are given {name} in this single request.\nNo distractor media are included.\n"
        )
        assert text.partition("below.")[2] == _seen(one)[1].partition("below.")[2]


def test_a_video_with_its_sound_is_sent_itself(root):
    dataset = _load_mixed_modality(root, mixed_modality_video_audio_omni(num_samples=6))
    assert _seen(dataset.samples[0])[0] == ["image", "video_url"]
    text = request_text(["image", "video"], "video", "Q?")
    assert text.startswith("You are given one image and one video in this single request.")
    frames = _load_mixed_modality(root, mixed_modality_qwen_vl(num_samples=6))
    assert _seen(frames.samples[0])[0] == ["image", *FRAMES]


def _items(**counts):
    return {
        medium: [Item(f"{medium}{i}", "?", "A", tuple) for i in range(count)]
        for medium, count in counts.items()
    }


def test_items_and_targets_are_shuffled_by_one_generator():
    """The order is the suite's: every list is shuffled in turn, then the targets."""
    items = _items(image=20, audio=19, video=18)
    rng = random.Random(7)
    lists = [list(range(20)), list(range(19)), list(range(18))]
    for one in lists:
        rng.shuffle(one)
    targets = ["image", "audio", "video"] * 4 + ["image"]
    rng.shuffle(targets)
    chosen = choose_questions(items, 13, 7)
    assert [one.medium for one in chosen] == targets
    assert [one.id for one in chosen] == [
        f"image{a}+audio{b}+video{c}" for a, b, c in list(zip(*lists, strict=False))[:13]
    ]
    assert choose_questions(items, 13, 8) != chosen
    with pytest.raises(DatasetError, match="19 questions of each medium are needed; found 18 of v"):
        choose_questions(items, 19, 7)


def test_rows_that_cannot_be_asked_are_passed_over(root):
    roots, settings = DataRoots(roots=(root,)), VideoSettings()
    images, _ = read_items("image", roots, 3, settings)
    assert [(one.id, one.target) for one in images] == [
        ("by word", "C"),
        ("Accounting_0", "B"),
        ("Accounting_1", "B"),
    ]
    assert images[0].question == "Which is <image 1>?\nRespond with only the option letter."
    sounds, files = read_items("audio", roots, 99, settings)
    assert [one.id for one in sounds] == [f"s{i}" for i in range(6)]
    assert (sounds[0].target, len(files)) == ("So 0 it is", 1)


def test_missing_and_wrong_media_are_named(tmp_path):
    _write(tmp_path, 6)
    (tmp_path / "voxpopuli/en/1.wav").write_bytes(b"no sound")
    with pytest.raises(DatasetError, match=r"test\.jsonl: s\d: not a"):
        _load_mixed_modality(tmp_path, mixed_modality_omni(num_samples=6))
    (tmp_path / "voxpopuli/en/1.wav").unlink()
    with pytest.raises(DatasetError, match=r"1\.wav: No such file"):
        _load_mixed_modality(tmp_path, mixed_modality_omni(num_samples=6))
    with pytest.raises(DatasetError, match="7 questions of each medium are needed"):
        _load_mixed_modality(tmp_path, mixed_modality_qwen_vl(num_samples=7))
    with pytest.raises(PlanError, match="num_samples must be 3 or more"):
        mixed_modality_omni(num_samples=2)


def test_the_fingerprint_names_the_choices(root):
    def told(**options):
        task = mixed_modality_omni(num_samples=6, **options)
        return fingerprint(task, _load_mixed_modality(root, task))

    base = told()
    assert base["num_frames"] == "8"
    for options in ({"num_frames": 2}, {"random_seed": 1}, {"send": "video"}):
        assert told(**options) != base


def test_answers_are_read_by_medium(root):
    task = mixed_modality_omni(num_samples=6)
    scored = []
    for sample in _load_mixed_modality(root, task).samples:
        score = task.score(sample, Response(text=f"{sample.target}", finish_reason="stop"))
        assert score.value == 1.0
        scored.append((sample, score.value))
    assert task.breakdown(scored)[MEDIUM] == {
        medium: {"value": 100.0, "scored": 2} for medium in ("audio", "image", "video")
    }
