"""The use of a round's token budget."""

from __future__ import annotations

from typing import Any

import pytest

from serve_eval.checks.run import choose_checks
from serve_eval.errors import PlanError
from serve_eval.stats.betting import floor
from serve_eval.workflows.watch.bets import ACCURACY, FLOOR_ALPHA
from serve_eval.workflows.watch.budget import (
    Budget,
    budget,
    checks_of,
    describe_budget,
    least_fall,
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


def _describe(tokens: int, **more: Any) -> list[str]:
    usual = {"every_s": 600.0, "prompts": 200, "passes": 8, "tolerance": 0.01}
    return list(describe_budget(_budget(tokens), **{**usual, **more}))


def test_what_it_costs_is_told() -> None:
    assert _describe(6000) == [
        (
            "each round asks 10 or 30 questions (at most 200 tokens each), with a smoke"
            " test every 2 rounds, and takes at most 6000 tokens"
        ),
        "per day: 144 rounds, at most 864,000 tokens",
        (
            "the baseline asks 200 prompts 8 times: about 81 rounds, 13.5 hours, at most"
            " 484,000 tokens. Until it is complete, no alarm about accuracy or usable"
            " answers is possible"
        ),
        (
            "--set watch.passes=4 gives a shorter baseline with the same error rate: about 41"
            " rounds, 6.8 hours, at most 244,000 tokens. At best, it notices falls of more "
            "than 2.4% of the answers; the longer one notices falls of more than 1.6%"
        ),
    ]
    assert "about 81 rounds, 13.5 minutes, " in _describe(6000, every_s=10.0)[2]
    assert "about 81 rounds, 49 seconds, " in _describe(6000, every_s=0.6)[2]


@pytest.mark.parametrize("more", [{"passes": 4}, {"passes": 8, "learnt": False}])
def test_a_baseline_that_is_short_or_not_learnt_names_no_shorter_one(more: dict[str, Any]) -> None:
    assert _describe(6000, **more)[-1].startswith("the baseline asks ")


def test_no_round_asks_a_prompt_twice() -> None:
    first, _, last, _ = _describe(16_000, prompts=20)
    assert first.startswith("each round asks 20 questions")
    assert "about 9 rounds" in last


@pytest.mark.parametrize(("prompts", "passes"), [(200, 8), (200, 4), (100, 4)])
def test_the_least_fall_is_that_of_prompts_that_answer_as_before(prompts: int, passes: int) -> None:
    """Nine of ten are always right, so that the distance of the floor is the least possible."""
    scores = [[1.0] * (prompts * 9 // 10) + [0.0] * (prompts // 10)] * passes
    gap = 0.9 - floor(scores, FLOOR_ALPHA[ACCURACY])
    told = least_fall(prompts, passes, 0.01)
    assert told == pytest.approx(0.01 + gap, abs=0.002)


def test_a_watch_sends_no_bursts() -> None:
    names = {check.name for check in checks_of(choose_checks("quick"))}
    assert {"chat", "stream_chat", "openai_chat"} <= names
    assert not names & {"concurrency", "questions", "cancel"}
    assert smoke_tokens(checks_of(choose_checks("quick"))) < 8000
