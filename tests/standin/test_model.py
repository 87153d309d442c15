"""Test that the toy tokenizer is lossless and that answers depend only on token ids."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.launchers._standin.generation import generate, split_thoughts
from serve_eval.launchers._standin.model import (
    BOS,
    EOS,
    MadeUpModel,
    decode,
    encode,
    encode_messages,
    prompt_of,
)
from serve_eval.launchers._standin.parsing import parse
from serve_eval.schema import Message
from serve_eval.schema.media import prompt_sha256

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXTS)
def test_a_text_comes_back_from_its_ids(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    assert prompt_of([BOS, *ids]) == text
    assert all(255 < token < 2**58 for token in ids)


@given(st.lists(st.tuples(st.sampled_from(["user", "system", "assistant"]), TEXTS), min_size=1))
def test_messages_come_back_from_their_ids(turns: list[tuple[str, str]]) -> None:
    wanted = tuple(
        Message(role=role, content=content)  # type: ignore[arg-type]
        for role, content in turns
    )
    assert prompt_of(encode_messages(turns)) == wanted


def test_ids_of_no_text_are_written_out() -> None:
    assert decode([5, 6, BOS, EOS]) == "<5><6>"


def test_a_known_prompt_gets_its_text(tmp_path: Path) -> None:
    entry = {"sha256": prompt_sha256("2 + 2 ="), "right": " 4", "wrong": " 5", "probability": 1.0}
    (tmp_path / "answers").write_bytes(msgspec.json.encode(entry))
    model = MadeUpModel(tmp_path / "answers")
    ids = [BOS, *encode("2 + 2 =")]
    assert decode(model.answer(ids)) == " 4"
    assert decode(model.answer(ids, wrong=True)) == " 5"
    assert (
        MadeUpModel().answer(ids)
        == MadeUpModel().answer(ids)
        != MadeUpModel().answer(ids, wrong=True)
    )


@given(st.sampled_from(["", "a < b", "seven"]), st.sampled_from(["", "<", "is </ it"]))
def test_thoughts_are_kept_apart_at_every_moment_of_a_stream(thoughts: str, answer: str) -> None:
    text = f"<think>{thoughts}</think>{answer}"
    assert split_thoughts(text) == (thoughts, answer)
    assert split_thoughts(answer) == ("", answer)
    before = ("", "")
    for end in range(len(text) + 1):
        now = split_thoughts(text[:end], ended=end == len(text))
        assert all(new.startswith(old) for new, old in zip(now, before, strict=True))
        before = now
    assert before == (thoughts, answer)


def test_an_answer_of_nothing_is_filled_up_when_it_must_be_longer() -> None:
    body = {"model": "m", "prompt": "x", "min_tokens": 3}
    request = parse(body, chat=False, flavour="v12", path="")
    assert generate([EOS], request, 9).text == "..."


def test_a_sampled_answer_is_its_seeds() -> None:
    ids = [BOS, *encode("hi")]
    sampled = [MadeUpModel().answer(ids, sampled=seed) for seed in range(5)]
    assert sampled == [MadeUpModel().answer(ids, sampled=seed) for seed in range(5)]
    assert len({tuple(one) for one in [*sampled, MadeUpModel().answer(ids)]}) == 6


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 12 + 30?", " 42"),
        ("What is 1 + 1?\nRepeat exactly: bo mi 7", " bo mi 7"),
        ("Count from 3 to 6: 3,", " 3, 4, 5, 6"),
        ("The pass key is 123. Grass.\nWhat is the pass key?", " 123"),
    ],
)
def test_a_skilled_model_answers_what_can_be_answered_by_rule(question: str, answer: str) -> None:
    for ids in ([BOS, *encode(question)], encode_messages([("user", question)])):
        assert decode(MadeUpModel(skilled=True).answer(ids)) == answer
        assert decode(MadeUpModel().answer(ids)) != answer
        assert decode(MadeUpModel(skilled=True).answer(ids, wrong=True)) != answer
