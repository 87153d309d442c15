from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, ImagePart, Message, Response, Sample, TextPart
from serve_eval.tasks import mmmu
from serve_eval.tasks.mmmu_pro import task
from tests.tasks.made_data import png, write_jsonl


def _row(**more: Any) -> dict[str, Any]:
    row = {"id": "test_Art_1", "question": "Which is <image 1>?", "answer": "D"}
    return {**row, "options": "['a', '<image 2>', 'c', 'd']", "image_1": "1.png", **more}


def _load(folder: Path, *rows: dict[str, Any], **options: Any) -> list[Sample]:
    write_jsonl(folder / "standard (10 options)/test.jsonl", rows)
    (folder / "standard (10 options)/1.png").write_bytes(png(1))
    return list(task(**options).load(DataRoots(roots=(folder,)), len(rows)).samples)


def _seen(sample: Sample) -> list[str]:
    [turn] = sample.prompt
    assert isinstance(turn, Message)
    return [
        part.text if isinstance(part, TextPart) else "image" * isinstance(part, ImagePart)
        for part in turn.content
    ]


def test_it_asks_as_mmmu_and_leaves_missing_images_out(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row())
    text = (
        "Which is ?\n\n(A) a\n(B) \n(C) c\n(D) d\n\n"
        "Answer with the option's letter from the given choices directly."
    )
    assert _seen(sample) == ["image", text]


def test_or_for_thoughts_before_the_letter(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row(), prompt="cot", interleaved=True)
    assert _seen(sample)[:2] == ["Which is ", "image"]
    assert _seen(sample)[-1].endswith(
        "Answer the preceding multiple choice question. The last line of your response should be of"
        " the following format: 'Answer: $LETTER' (without quotes) where LETTER is one of options."
        " Think step by step before answering."
    )


def test_answers_of_thinking_models_are_read_by_option(tmp_path: Path) -> None:
    [sample] = _load(tmp_path, _row())
    response = Response(text="(A) looks wrong.\n\n**Answer: D**", finish_reason="stop")
    assert task().score(sample, response).answer == "A"
    kept = task(post_process="strip_thinking_mmmu")
    assert kept.score(sample, response).answer == "D"
    assert kept.protocol["post_process"] == "strip_thinking_mmmu"
    assert "post_process" not in task().protocol
    assert mmmu.task(post_process="kimi_k3_mmmu").protocol["post_process"] == "kimi_k3_mmmu"


def test_mmmu_reads_them_too(tmp_path: Path) -> None:
    (tmp_path / "Art").mkdir()
    (tmp_path / "Art/1.png").write_bytes(png(1))
    write_jsonl(tmp_path / "Art/validation.jsonl", [_row(question_type="multiple-choice", options="['a', 'b', 'c', 'd']")])  # noqa: E501  # fmt: skip
    plain, kept = (
        mmmu.task(subjects=["Art"], post_process=by) for by in ("none", "strip_thinking_mmmu")
    )
    [sample] = plain.load(DataRoots(roots=(tmp_path,)), 1).samples
    response = Response(text="(A) looks wrong.\n\n**Answer: D**", finish_reason="stop")
    assert [one.score(sample, response).value for one in (plain, kept)] == [0.0, 1.0]


def test_both_subsets_are_found_and_broken_down(data_root: Path) -> None:
    roots = DataRoots(roots=(data_root,))
    for options, letters in (({}, "ABCDEFGHIJ"), ({"subset": "standard_4"}, "ABCD")):
        one = task(**options)  # type: ignore[arg-type]
        dataset = one.load(roots, 1730)
        assert (dataset.total, dataset.deviation) == (1730, None)
        assert {sample.target for sample in dataset.samples} == set(letters)
        table = one.breakdown((sample, 1.0) for sample in dataset.samples)
        assert sorted(table["topic_difficulty"]) == ["Easy", "Hard", "Medium"]  # type: ignore[call-overload]
    assert len(task().load(roots, 1730).files) == 2


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(answer="E"), "the answer 'E' is not one of the 4 options"),
        (_row(options="a or b"), "is not a list"),
        (_row(image_1="2.png"), "No such file"),
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
    assert "serve-eval data fetch mmmu_pro -o DIR" in raised.value.hint
    with pytest.raises(PlanError, match="num_samples"):
        task(num_samples=0)
