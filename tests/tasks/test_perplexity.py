from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, PromptLogprobs, Response, Sample
from serve_eval.tasks._samples import shuffle
from serve_eval.tasks.perplexity import task


def _told(*values: float) -> Response:
    return Response(text="", finish_reason="length", prompt_logprobs=PromptLogprobs(values=values))


def test_the_value_is_the_mean_of_the_texts_and_all_tokens_stand_beside_it() -> None:
    made = task()
    short, long = Sample(id="a", prompt="p", target=""), Sample(id="b", prompt="p", target="")
    scored = [
        (short, made.score(short, _told(-1.0))),
        (long, made.score(long, _told(-2.0, -2.0, -2.0))),
    ]
    assert made.aggregation.of(scored) == pytest.approx((math.e + math.e**2) / 2)
    assert made.secondary(scored) == {"perplexity of all tokens": pytest.approx(math.exp(7 / 4))}


def test_short_texts_are_left_out_and_long_ones_are_cut(data_root: Path) -> None:
    dataset = task().load(DataRoots(roots=(data_root,)), 86)
    assert len(dataset.samples) == 86
    assert dataset.total > 86
    assert {len(sample.prompt) for sample in dataset.samples} <= {*range(40001, 65536 + 1)}
    assert max(len(sample.prompt) for sample in dataset.samples) == 65536
    kept = {f"test-{i}" for i in shuffle(dataset.total, 0)} & {
        sample.id for sample in dataset.samples
    }
    assert [s.id for s in dataset.samples] == [
        f"test-{i}" for i in shuffle(dataset.total, 0) if f"test-{i}" in kept
    ]


def test_texts_are_shuffled_and_mended_as_the_suite_does(tmp_path: Path) -> None:
    rows = [{"text": f" {i}: it did n't. " + "x" * 40} for i in range(11)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = task(min_tokens=1, max_input_tokens=3)
    dataset = made.load(DataRoots(roots=(tmp_path,)), 4)
    assert [s.id for s in dataset.samples] == [f"test-{i}" for i in shuffle(11, 0)[:4]]
    assert dataset.samples[0].prompt == f"{shuffle(11, 0)[0]}: it didn't. "[:12]
    other = task(min_tokens=1, max_input_tokens=3, random_seed=1).load(
        DataRoots(roots=(tmp_path,)), 4
    )
    assert [s.id for s in other.samples] == [f"test-{i}" for i in shuffle(11, 1)[:4]]


def test_a_text_of_one_s_own_is_cut_into_pieces(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("x" * 1000)
    made = task(files=["novel.txt"], min_tokens=10, max_input_tokens=100)
    dataset = made.load(DataRoots(roots=(tmp_path,)), 86)
    assert [(s.id, len(s.prompt)) for s in dataset.samples] == [
        ("novel-0", 400),
        ("novel-1", 400),
        ("novel-2", 200),
    ]
    assert dataset.deviation == "your own texts"
    with pytest.raises(DatasetError, match=r"missing\.txt was not found"):
        task(files=["missing.txt"]).load(DataRoots(roots=(tmp_path,)), 86)
    with pytest.raises(DatasetError, match="0 texts are longer"):
        task(files=["novel.txt"]).load(DataRoots(roots=(tmp_path,)), 86)
    with pytest.raises(PlanError, match="below max_input_tokens"):
        task(min_tokens=5, max_input_tokens=5)


def test_a_real_novel_is_asked_in_pieces(shared: Path) -> None:
    dataset = task(files=["long_text/war_and_peace.txt"]).load(
        DataRoots(roots=(shared / "data",)), 86
    )
    assert len(dataset.samples) > 40
    assert len({sample.id for sample in dataset.samples}) == len(dataset.samples)
