"""Test how prompts are grouped: by the subject in a task's table and by their first words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from serve_eval.evidence.attribution.bad_workers import BEGINNING, SUBJECT, kinds_of
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Message, Sample, Spec

TASK = build_task(Spec(name="gsm8k"))


def _samples(texts: Sequence[str]) -> list[Sample]:
    return [Sample(id=str(i), prompt=text, target="1") for i, text in enumerate(texts)]


def test_a_subject_is_what_the_breakdown_tells_apart_first() -> None:
    mmlu = build_task(Spec(name="mmlu"))
    subjects = ["anatomy", "astronomy", "anatomy"]
    samples = [
        replace(one, metadata={"subject": s})
        for one, s in zip(_samples("???"), subjects, strict=True)
    ]
    assert kinds_of(mmlu, samples) == {SUBJECT: subjects}


def _alike(kind: Sequence[object]) -> list[int]:
    return [kind.index(one) for one in kind]


@pytest.mark.parametrize("shared", [0, 70, 5000])
def test_prompts_begin_alike_up_to_where_some_of_them_part(shared: int) -> None:
    texts = [
        "s" * shared + about + f" question {i}"
        for i, about in enumerate(["a" * 99, "b" * 99, "a" * 99])
    ]
    for prompts in (texts, [(Message(role="user", content=text),) for text in texts]):
        samples = [Sample(id=str(i), prompt=prompt, target="1") for i, prompt in enumerate(prompts)]
        assert _alike(kinds_of(TASK, samples)[BEGINNING]) == [0, 1, 0]


def test_what_nothing_tells_apart_has_no_kinds() -> None:
    assert kinds_of(TASK, _samples(["the same"] * 3)) == {}
    assert kinds_of(TASK, []) == {}
