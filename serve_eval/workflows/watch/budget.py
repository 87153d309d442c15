"""Divide the tokens of a round between the smoke test and questions.

Prompt tokens and generated tokens count. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serve_eval.checks.check import Check
from serve_eval.checks.session import ALIVE_TOKENS
from serve_eval.errors import PlanError

TOKENS = 16_000
"""Default number of tokens of a round."""
LEAST = 10
"""Questions that have to fit into a round without a smoke test."""
_ALIVE_PROMPT = 16
_LEFT_OUT = frozenset({"questions", "concurrency"})
"""Checks of the quick smoke test that a watch skips: the task asks enough questions, and production
has its own load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The tokens of a round.

    A smoke test takes at most `smoke` tokens and runs every `smoke_every` rounds (0: never). A
    question takes at most `question` tokens.
    """

    tokens: int
    smoke: int
    smoke_every: int
    question: int

    def questions(self, *, smoke: bool) -> int:
        """Return the number of questions that fit into a round."""
        return (self.tokens - self.smoke * smoke) // self.question


def checks_of(checks: Sequence[Check]) -> list[Check]:
    """Return those checks of a smoke test that a watch runs."""
    return [check for check in checks if check.name not in _LEFT_OUT]


def smoke_tokens(checks: Sequence[Check]) -> int:
    """Return the largest number of tokens that the checks declare.

    It includes the short request after each check, which follows a failure.
    """
    return sum(
        check.tokens + check.prompt_tokens + ALIVE_TOKENS + _ALIVE_PROMPT for check in checks
    )


def budget(tokens: int, *, smoke: int, prompt_tokens: Sequence[int], answer_tokens: int) -> Budget:
    """Return how a round spends its tokens.

    A smoke test that takes more than half of the tokens runs every second round. One that takes
    more than all of them never runs. Raises PlanError if the tokens are too few.
    """
    question = max(prompt_tokens) + answer_tokens
    if tokens < LEAST * question:
        raise PlanError(
            f"--budget-tokens: {tokens} tokens are enough for {tokens // question} questions of up"
            f" to {question} tokens",
            hint=(
                f"Give at least {LEAST * question}, or shorten the answers with --set"
                " TASK.max_tokens=N."
            ),
        )
    every = 0 if not smoke or smoke > tokens else 1 if 2 * smoke <= tokens else 2
    return Budget(tokens=tokens, smoke=smoke if every else 0, smoke_every=every, question=question)


def describe_budget(one: Budget, *, every_s: float, prompts: int, passes: int) -> Iterator[str]:
    """Yield lines that describe the cost of a watch."""
    day = 86400.0 / every_s if every_s else 0.0
    plain = min(prompts, one.questions(smoke=False))
    mixed = min(prompts, one.questions(smoke=True))
    smoke = {0: "no smoke test", 1: "a smoke test"}.get(
        one.smoke_every, f"a smoke test every {one.smoke_every} rounds"
    )
    asked = (
        f"{mixed}"
        if one.smoke_every == 1
        else f"{mixed} or {plain}"
        if one.smoke_every
        else f"{plain}"
    )
    yield (
        f"per round: {asked} questions (at most {one.question} tokens each) and {smoke}; at most"
        f" {one.tokens} tokens"
    )
    if day:
        yield f"per day: {day:.0f} rounds, at most {day * one.tokens:,.0f} tokens"
    per_round = mixed if one.smoke_every == 1 else (mixed + plain) / 2 if one.smoke_every else plain
    rounds = -(-prompts * passes // max(1.0, per_round))
    wait = rounds * every_s
    time = (
        ""
        if not wait
        else f", {wait / 3600:.1f} hours"
        if wait >= 3600
        else f", {wait / 60:.1f} minutes"
    )
    yield (
        f"baseline: {prompts} prompts {passes} times, about {rounds:.0f} rounds{time}; accuracy is"
        " judged after it"
    )
