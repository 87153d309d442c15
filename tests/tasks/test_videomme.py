from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.schema import (
    DataRoots,
    Dataset,
    MediaFile,
    Message,
    Outcome,
    Response,
    Sample,
    TextPart,
)
from serve_eval.tasks.videomme import task
from tests.datasets.videos import grey_of, write_video
from tests.tasks.made_data import write_jsonl


def _row(**more: Any) -> dict[str, Any]:
    row = {"sample_id": "001-1", "video_path": "v/1.avi", "question": "What moves?"}
    return {**row, "options": ["A. a cat", "b) A dog", " it ", "none"], "answer": " b ", **more}


def _load(folder: Path, *rows: dict[str, Any], **options: Any) -> Dataset:
    write_jsonl(folder / "annotations.jsonl", rows)
    if not (folder / "v/1.avi").exists():
        write_video(folder / "v/1.avi", 22)
    return task(**options).load(DataRoots(roots=(folder,)), len(rows))


def _parts(sample: Sample) -> tuple[list[MediaFile], str]:
    [turn] = sample.prompt
    assert isinstance(turn, Message)
    *media, text = turn.content
    assert isinstance(text, TextPart)
    return [part for part in media if isinstance(part, MediaFile)], text.text


def test_eight_frames_stand_before_the_question(tmp_path: Path) -> None:
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


def test_or_the_video_itself(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row(), send="video").samples
    [video], _ = _parts(sample)
    assert (video.form, video.media_type) == ("video_url", "video/x-msvideo")
    assert Path(video.path) == tmp_path / "v/1.avi"
    assert task(send="video", num_frames=3).protocol["send"] == "video"
    assert "num_frames" not in task(send="video").protocol


def test_the_fingerprint_covers_the_video_and_its_frames(tmp_path: Path) -> None:
    def told(**options: Any) -> dict[str, str]:
        return fingerprint(task(**options), _load(tmp_path, _row(), **options))

    settings: tuple[dict[str, Any], ...] = (
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
def test_the_first_letter_is_the_answer(tmp_path: Path, text: str, letter: str | None) -> None:
    [sample] = _load(tmp_path, _row(), send="video").samples
    score = task().score(sample, Response(text=text, finish_reason="stop"))
    assert (score.answer, score.value) == (letter, float(letter == "B"))
    assert (score.outcome is Outcome.UNPARSED) == (letter is None)


def test_the_value_is_broken_down_by_known_columns(data_root: Path) -> None:
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
def test_rows_that_cannot_be_asked_are_named(
    tmp_path: Path, row: dict[str, Any], what: str
) -> None:
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_a_file_that_is_no_video_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="jsonl: not a MP4"):
        _load(tmp_path, _row(video_path="annotations.jsonl"), send="video")


def test_too_few_lines_and_wrong_options(tmp_path: Path) -> None:
    _load(tmp_path, _row())
    with pytest.raises(DatasetError, match="has 1 lines; 2 are needed"):
        task().load(DataRoots(roots=(tmp_path,)), 2)
    with pytest.raises(PlanError, match="must be 1 or more"):
        task(num_frames=0)
