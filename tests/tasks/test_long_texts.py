"""Test the prompts, order and cuts of cnn_dailymail, longbench_v2 and zero_scrolls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, Message, Response
from serve_eval.tasks import cnn_dailymail, longbench_v2, zero_scrolls
from tests.tasks.made_data import write_cnn_dailymail, write_jsonl


def test_an_article_ends_in_its_cue() -> None:
    assert cnn_dailymail.prompt_text(" He did n't go. ") == "Hedidn't go.  TL;DR:".replace(
        "Hedid", "He did"
    )
    assert cnn_dailymail.prompt_text("") == "TL;DR:"


def test_articles_are_asked_in_the_shuffled_order_with_their_end_kept(data_root: Path) -> None:
    made = cnn_dailymail.task()
    dataset = made.load(DataRoots(roots=(data_root,)), 512)
    assert dataset.deviation == "512 rows, where CNN/DailyMail has 11490"
    assert made.extra == {"truncate_prompt_tokens": 924}
    assert (made.sampling.max_tokens, made.hypothesis.sigma, made.hypothesis.alpha) == (
        100,
        11.06,
        0.002,
    )
    sample = dataset.samples[0]
    score = made.score(sample, Response(text=sample.target.split()[0], finish_reason="stop"))
    assert 0.0 < score.value < 1.0
    assert score.parts["rouge1"] == score.value


def test_the_order_of_all_articles_is_the_golden_one(tmp_path: Path) -> None:
    from serve_eval.tasks._samples import shuffle

    assert shuffle(11490, 0)[:6] == [10265, 3688, 8611, 1624, 9217, 604]
    assert shuffle(100, 0)[:4] == [82, 36, 20, 5]


def test_fewer_articles_than_are_wanted_are_an_error(tmp_path: Path) -> None:
    write_cnn_dailymail(tmp_path, 5)
    with pytest.raises(DatasetError, match="has 5 rows; 512 are needed"):
        cnn_dailymail.task().load(DataRoots(roots=(tmp_path,)), 512)


def test_only_the_medium_questions_are_asked_in_the_order_of_the_file(data_root: Path) -> None:
    dataset = longbench_v2.task().load(DataRoots(roots=(data_root,)), 215)
    assert [s.id for s in dataset.samples[:2]] == ["id4", "id5"]
    assert (len(dataset.samples), dataset.total) == (215, 215)
    [message] = dataset.samples[0].prompt
    assert isinstance(message, Message)
    rows = json.loads((data_root / "longbench_v2/data.json").read_text())
    row = rows[4]
    assert message.content == (
        "Please read the following text and answer the question below.\n\n<text>\n"
        + row["context"].strip()
        + "\n</text>\n\nWhat is the correct answer to this question: "
        + row["question"]
        + "".join(f"\n({x}) {row[f'choice_{x}'].strip()}" for x in "ABCD").join(
            ["\nChoices:", "\n\n"]
        )
        + 'Format your response as follows: "The correct answer is (insert answer here)".'
    )
    table = longbench_v2.task().breakdown((s, 1.0) for s in dataset.samples)
    assert set(table) == {"domain", "difficulty"}


def test_the_context_that_is_needed_is_that_of_the_length_that_is_asked() -> None:
    needed = {
        length: longbench_v2.task(length=length).context_tokens
        for length in ("short", "medium", "long")
    }
    assert needed == {
        "short": 48_000 + 32_000,
        "medium": 120_000 + 32_000,
        "long": 120_000 + 32_000,
    }
    assert longbench_v2.task(length="short", max_input_chars=4000).context_tokens == 33_000
    assert longbench_v2.task(length="short", max_input_chars=None).context_tokens == 80_000
    assert longbench_v2.task(max_input_chars=None).context_tokens is None


def test_a_long_prompt_loses_its_middle() -> None:
    assert longbench_v2.middle_cut("abcdefgh", 4) == "abgh"
    assert longbench_v2.middle_cut("abcdefgh", 5) == "abgh"
    assert longbench_v2.middle_cut("abcd", 4) == longbench_v2.middle_cut("abcd", None) == "abcd"
    with pytest.raises(PlanError):
        longbench_v2.task(max_input_chars=1)


def test_a_question_without_a_letter_is_an_error_of_the_data(tmp_path: Path) -> None:
    columns = dict.fromkeys(longbench_v2.COLUMNS, "x")
    (tmp_path / "data.json").write_text(
        json.dumps([{**columns, "length": "medium", "answer": "E"}])
    )
    with pytest.raises(DatasetError, match="answer than A to D"):
        longbench_v2.task().load(DataRoots(roots=(tmp_path,)), 1)
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(DatasetError, match="not a JSON list"):
        longbench_v2.task().load(DataRoots(roots=(tmp_path,)), 1)


def test_a_story_is_asked_as_its_input_says(data_root: Path, tmp_path: Path) -> None:
    made = zero_scrolls.task()
    dataset = made.load(DataRoots(roots=(data_root,)), 80)
    assert dataset.deviation is None
    assert len({s.id for s in dataset.samples}) == 80
    assert all(str(s.prompt).endswith(".n't") for s in dataset.samples)
    write_jsonl(tmp_path / "validation.jsonl", [{"id": "0", "input": "q", "output": "a"}])
    assert zero_scrolls.task().load(DataRoots(roots=(tmp_path,)), 1).samples[0].target == "a"
