from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, ImagePart, MediaFile, Message, Response, Sample, TextPart
from serve_eval.tasks.ocrbench import contains, task
from tests.tasks.made_data import png


def _row(**more: Any) -> dict[str, Any]:
    row = {"dataset_name": "docVQA", "id": 708, "image_path": "docVQA/1.png", "answers": "$506 M"}
    return {**row, "question": "What is the value?", "type": "Doc-oriented VQA", **more}


def _load(folder: Path, *rows: dict[str, Any], **options: Any) -> list[Sample]:
    """Write the authors' file with its images, and load it."""
    (folder / "OCRBench_Images/docVQA").mkdir(parents=True, exist_ok=True)
    (folder / "OCRBench_Images/docVQA/1.png").write_bytes(png(1))
    (folder / "OCRBench.json").write_text(json.dumps(rows))
    return list(task(**options).load(DataRoots(roots=(folder,)), len(rows)).samples)


def _seen(sample: Sample) -> list[str]:
    [turn] = sample.prompt
    assert isinstance(turn, Message)
    return [part.text if isinstance(part, TextPart) else "image" for part in turn.content]  # type: ignore[union-attr]


def test_the_question_follows_its_image(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row())
    assert _seen(sample) == ["image", "What is the value?"]
    [sample] = _load(tmp_path, _row(), text_first=True)
    assert _seen(sample) == ["What is the value?", "image"]


def test_an_image_of_its_own_stays_in_its_file_and_those_of_the_hub_are_sent_as_bytes(
    tmp_path: Path, data_root: Path
) -> None:
    kinds = []
    hub = task().load(DataRoots(roots=(data_root,)), 1000)
    for sample in (_load(tmp_path, _row())[0], hub.samples[0]):
        [turn] = sample.prompt
        assert isinstance(turn, Message)
        kinds.append(type(turn.content[0]))
    assert kinds == [MediaFile, ImagePart]
    assert (hub.total, hub.deviation) == (1000, None)


def test_questions_on_one_image_are_a_group(tmp_path: Path) -> None:
    first, second = _load(tmp_path, _row(), _row(question="And this?"))
    assert first.group == second.group is not None


@pytest.mark.parametrize(
    ("text", "accepted", "formula", "right"),
    [
        ("It is $506 m\nin all.", ["$506 M"], False, True),
        ("It is $506\nm.", ["$506 M"], False, True),
        ("It is $ 506 m.", ["$506 M"], False, False),
        ("Centre", ["CENTRE"], False, True),
        ("The center", ["CENTRE", " center \n"], False, True),
        ("So y_{2} = -1", ["y _ { 2 } = - 1\n"], True, True),
        ("So Y_{2} = -1", ["y _ { 2 } = - 1\n"], True, False),
        ("so y_2\n=-1", ["y_2 = - 1"], True, True),
        ("so y_2\t=-1", ["y_2 = - 1"], True, False),
        ("", ["a"], False, False),
    ],
)
def test_an_answer_that_contains_an_expected_one_is_right(
    text: str, accepted: list[str], formula: bool, right: bool
) -> None:
    assert contains(text, accepted, formula=formula) is right


def test_only_handwritten_formulas_are_compared_with_their_case(tmp_path: Path) -> None:
    formula = {"dataset_name": "HME100k", "answers": ["Y = 1", "y = 2"]}
    plain, handwritten = _load(tmp_path, _row(answers=["Y = 1"]), _row(**formula))
    if plain.id != "test-0":
        plain, handwritten = handwritten, plain
    told = Response(text="y = 1", finish_reason="stop")
    assert [task().score(one, told).value for one in (plain, handwritten)] == [1.0, 0.0]


def test_the_breakdown_is_by_component_and_type(data_root: Path) -> None:
    samples = task().load(DataRoots(roots=(data_root,)), 1000).samples
    found = task().breakdown((sample, 1.0) for sample in samples)
    formulas = "Handwritten Mathematical Expression Recognition"
    assert list(found["type"]) == ["Doc-oriented VQA", formulas, "Regular Text Recognition"]  # type: ignore[call-overload]
    assert list(found["component"]) == ["Doc-oriented VQA", formulas, "Text Recognition"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(image_path="docVQA/2.png"), "there is no image docVQA/2.png in"),
        (_row(image_path=None), "row 1: the image is missing"),
        (_row(answers=[]), "row 1: answers must be a text or a list of texts"),
        (_row(answers=""), "row 1: answers must be a text or a list of texts"),
        (_row(question=None), "row 1: question is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(
    tmp_path: Path, row: dict[str, Any], what: str
) -> None:
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_too_few_rows_say_where_to_get_the_others(tmp_path: Path) -> None:
    _load(tmp_path, _row())
    with pytest.raises(DatasetError, match="has 1 rows; 2 are needed") as raised:
        task().load(DataRoots(roots=(tmp_path,)), 2)
    assert "serve-eval data fetch ocrbench -o DIR" in raised.value.hint
    with pytest.raises(PlanError, match="num_samples"):
        task(num_samples=0)
