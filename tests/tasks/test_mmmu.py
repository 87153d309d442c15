from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import (
    DataRoots,
    ImagePart,
    Message,
    Need,
    Plan,
    Response,
    Sample,
    Spec,
    TextPart,
)
from serve_eval.tasks.mmmu import SUBJECTS, task
from tests.tasks.made_data import png, write_jsonl


def _row(**more: Any) -> dict[str, Any]:
    row = {
        "id": "validation_Art_1",
        "question": "Which is <image 2>?",
        "question_type": "multiple-choice",
    }
    return {**row, "options": "['<image 1>', 'a \"dot\"']", "answer": "B", **more}


def _load(folder: Path, *rows: dict[str, Any], **options: Any) -> list[Sample]:
    for number in (1, 2):
        (folder / f"Art/{number}.png").parent.mkdir(exist_ok=True)
        (folder / f"Art/{number}.png").write_bytes(png(number))
    named = [{"image_1": "1.png", "image_2": "2.png", **row} for row in rows]
    write_jsonl(folder / "Art/validation.jsonl", named)
    dataset = task(subjects=["Art"], **options).load(DataRoots(roots=(folder,)), len(rows))
    return list(dataset.samples)


def _seen(sample: Sample) -> list[object]:
    """Return the parts of the turn: texts, and the content of images."""
    [turn] = sample.prompt
    assert isinstance(turn, Message)
    parts: list[object] = []
    for part in turn.content:
        if isinstance(part, ImagePart):
            parts.append(
                base64.b64decode(part.image_url.url.removeprefix("data:image/png;base64,"))
            )
        elif isinstance(part, TextPart):
            parts.append(part.text)
    return parts


TAIL = "Answer with the option's letter from the given choices directly."


def test_images_stand_before_the_text_without_its_marks(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row())
    assert _seen(sample) == [png(2), png(1), f'Which is ?\n\n(A) \n(B) a "dot"\n\n{TAIL}']


def test_or_in_their_places(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row(), interleaved=True)
    assert _seen(sample) == ["Which is ", png(2), "?\n\n(A) ", png(1), f'\n(B) a "dot"\n\n{TAIL}']
    [sample] = _load(tmp_path, _row(), interleaved=True, single_image=True)
    assert _seen(sample) == ["Which is ", png(2), "?\n\n(A) ", f'\n(B) a "dot"\n\n{TAIL}']


def test_or_the_first_one_alone(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row(), single_image=True)
    assert _seen(sample)[:-1] == [png(2)]


def test_an_open_question_may_have_several_answers(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row(question_type="open", options="[]", answer="['12', 'twelve']"))
    assert str(_seen(sample)[-1]).endswith(
        "?\n\nAnswer the question using a single word or phrase."
    )
    values = [
        task().score(sample, Response(text=text, finish_reason="stop")).value
        for text in ("Twelve.", "12", "13")
    ]
    assert values == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(answer="C"), "not one of the 2 options"),
        (_row(options="A or B"), "is not a list"),
        (_row(image_2=None), "image_2: the image is missing"),
        (_row(image_2="3.png"), "No such file"),
        (_row(image_2="validation.jsonl"), "not a PNG, JPEG"),
        (_row(question=None), "row 1: question is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(
    tmp_path: Path, row: dict[str, Any], what: str
) -> None:
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_the_whole_set_needs_images_and_chat(data_root: Path) -> None:
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="mmmu"),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    [prepared] = prepare(plan)
    assert prepared.needs == {Need.CHAT, Need.IMAGES}
    assert (len(prepared.dataset.samples), prepared.dataset.deviation) == (900, None)


def test_as_many_of_each_subject(data_root: Path) -> None:
    dataset = task(num_samples=31).load(DataRoots(roots=(data_root,)), 31)
    assert len(dataset.samples) == 2 * len(SUBJECTS)
    table = task().breakdown((sample, 1.0) for sample in dataset.samples)
    assert table["subject"] == {name: {"value": 100.0, "scored": 2} for name in sorted(SUBJECTS)}


def test_an_unknown_subject_has_its_nearest() -> None:
    with pytest.raises(PlanError, match="Did you mean 'Art_Theory'"):
        task(subjects=["Art_Teory"])
