"""How much of a round's tokens goes to what. A token is one that is read or generated. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serve_eval.checks.check import Check
from serve_eval.checks.session import ALIVE_TOKENS
from serve_eval.errors import PlanError

TOKENS = 16_000
"""Of a round, unless told otherwise."""
LEAST = 10
"""Questions that a round without a smoke test has to have room for."""
_ALIVE_PROMPT = 16
_LEFT_OUT = frozenset({"questions", "concurrency"})
"""Of the quick smoke test: the task asks questions enough, and production has load of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens of a round. `smoke` is what a smoke test takes at most, and one is made every
    `smoke_every` rounds (0: never); `question` what a question takes at most.
    """

    tokens: int
    smoke: int
    smoke_every: int
    question: int

    def questions(self, *, smoke: bool) -> int:
        """How many questions fit into a round."""
        return (self.tokens - self.smoke * smoke) // self.question


def checks_of(checks: Sequence[Check]) -> list[Check]:
    """The checks of a round, of those of a smoke test."""
    return [check for check in checks if check.name not in _LEFT_OUT]


def smoke_tokens(checks: Sequence[Check]) -> int:
    """What these checks take at most, by their own statements; with the short request after each
    that fails.
    """
    return sum(
        check.tokens + check.prompt_tokens + ALIVE_TOKENS + _ALIVE_PROMPT for check in checks
    )


def budget(tokens: int, *, smoke: int, prompt_tokens: Sequence[int], answer_tokens: int) -> Budget:
    """How a round spends its tokens. A smoke test that takes more than half of them is made every
    second round, one that takes more than all of them never. Raises PlanError for too few
    tokens.
    """
    question = max(prompt_tokens) + answer_tokens
    if tokens < LEAST * question:
        raise PlanError(
            f"--budget-tokens: {tokens} tokens are {tokens // question} questions; one may take"
            f" {question}",
            hint=(
                f"Give at least {LEAST * question}, or ask for shorter answers: --set"
                " TASK.max_tokens=N."
            ),
        )
    every = 0 if not smoke or smoke > tokens else 1 if 2 * smoke <= tokens else 2
    return Budget(tokens=tokens, smoke=smoke if every else 0, smoke_every=every, question=question)


def describe_budget(one: Budget, *, every_s: float, prompts: int, passes: int) -> Iterator[str]:
    """What a watch costs, in lines."""
    day = 86400.0 / every_s if every_s else 0.0
    plain = min(prompts, one.questions(smoke=False))
    mixed = min(prompts, one.questions(smoke=True))
    smoke = {0: "no smoke test", 1: "a smoke test"}.get(
        one.smoke_every, f"every {one.smoke_every} rounds a smoke test"
    )
    asked = (
        f"{mixed}"
        if one.smoke_every == 1
        else f"{mixed} or {plain}"
        if one.smoke_every
        else f"{plain}"
    )
    yield (
        f"a round: {asked} questions (of at most {one.question} tokens) and {smoke}; at most"
        f" {one.tokens} tokens"
    )
    if day:
        yield f"a day: {day:.0f} rounds, at most {day * one.tokens:,.0f} tokens"
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
        f"the baseline: {passes} times {prompts} prompts, about {rounds:.0f} rounds{time}; the"
        " watch begins after it"
    )
