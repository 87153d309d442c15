"""Check how a round's tokens are spent."""

from __future__ import annotations

import pytest

from serve_eval.checks.run import choose_checks
from serve_eval.errors import PlanError
from serve_eval.workflows.watch.budget import (
    Budget,
    budget,
    checks_of,
    describe_budget,
    smoke_tokens,
)


def _budget(tokens: int, smoke: int = 4000) -> Budget:
    return budget(tokens, smoke=smoke, prompt_tokens=[30, 72], answer_tokens=128)


@pytest.mark.parametrize(
    ("tokens", "every", "with_smoke", "without"),
    [(16_000, 1, 60, 80), (8000, 1, 20, 40), (6000, 2, 10, 30), (3000, 0, 15, 15)],
)
def test_questions_get_what_the_smoke_test_leaves(
    tokens: int, every: int, with_smoke: int, without: int
) -> None:
    one = _budget(tokens)
    assert (one.smoke_every, one.questions(smoke=True), one.questions(smoke=False)) == (
        every,
        with_smoke,
        without,
    )


def test_too_few_tokens_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(PlanError) as caught:
        _budget(1999)
    assert "Give at least 2000" in caught.value.hint


def test_what_it_costs_is_told() -> None:
    lines = list(describe_budget(_budget(6000), every_s=600.0, prompts=200, passes=8))
    assert lines == [
        (
            "per round: 10 or 30 questions (at most 200 tokens each) and a smoke test"
            " every 2 rounds;"
            " at most 6000 tokens"
        ),
        "per day: 144 rounds, at most 864,000 tokens",
        "baseline: 200 prompts 8 times, about 80 rounds, 13.3 hours; accuracy is judged after it",
    ]
    assert (
        "about 80 rounds, 13.3 minutes;"
        in list(describe_budget(_budget(6000), every_s=10.0, prompts=200, passes=8))[-1]
    )


def test_no_round_asks_a_prompt_twice() -> None:
    first, _, last = describe_budget(_budget(16_000), every_s=600.0, prompts=20, passes=8)
    assert first.startswith("per round: 20 questions")
    assert "about 8 rounds" in last


def test_a_watch_sends_no_bursts() -> None:
    names = {check.name for check in checks_of(choose_checks("quick"))}
    assert {"chat", "stream_chat", "openai_chat"} <= names
    assert not names & {"concurrency", "questions", "cancel"}
    assert smoke_tokens(checks_of(choose_checks("quick"))) < 8000
