"""Divide the tokens of a round between the smoke test, probes and questions.

Prompt tokens and generated tokens count. The functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serve_eval.checks.session import ALIVE_TOKENS, Check
from serve_eval.errors import PlanError
from serve_eval.workflows.watch.bets import ACCURACY, FLOOR_ALPHA

TOKENS = 16_000
"""Default number of tokens of a round."""
LEAST = 10
"""Questions that have to fit into a round without a smoke test."""
SHORT_PASSES = 4
"""Passes of a shorter baseline, which the description of the cost names as well."""
_ALIVE_PROMPT = 16
_LEFT_OUT = frozenset({"questions", "concurrency"})
"""Checks of the quick smoke test that a watch skips: the task asks enough questions, and production
has its own load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The tokens of a round, of which `probes` are kept for the probes of a reference.

    A smoke test takes at most `smoke` tokens and runs every `smoke_every` rounds (0: never). A
    question takes at most `question` tokens.
    """

    tokens: int
    smoke: int
    smoke_every: int
    question: int
    probes: int = 0

    def questions(self, *, smoke: bool) -> int:
        """Return the number of questions that fit into a round."""
        return (self.tokens - self.probes - self.smoke * smoke) // self.question


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


def budget(
    tokens: int, *, smoke: int, prompt_tokens: Sequence[int], answer_tokens: int, probes: int = 0
) -> Budget:
    """Return how a round spends its tokens.

    `probes` tokens are kept for probes. A smoke test that takes more than half of the rest runs
    every second round. One that takes more than all of it never runs. Raises PlanError if the
    tokens are too few.
    """
    question, rest = max(prompt_tokens) + answer_tokens, max(0, tokens - probes)
    if rest < LEAST * question:
        beside = f" and the probes, which take up to {probes} tokens" if probes else ""
        fewer = ", ask fewer probes with --set watch.probes_per_round=N" if probes else ""
        raise PlanError(
            f"--budget-tokens: {tokens} tokens are enough for {rest // question} questions of up"
            f" to {question} tokens{beside}",
            hint=(
                f"Give at least {LEAST * question + probes}{fewer}, or shorten the answers with"
                " --set TASK.max_tokens=N."
            ),
        )
    every = 0 if not smoke or smoke > rest else 1 if 2 * smoke <= rest else 2
    return Budget(
        tokens=tokens,
        smoke=smoke if every else 0,
        smoke_every=every,
        question=question,
        probes=probes,
    )


def describe_budget(
    one: Budget,
    *,
    every_s: float,
    prompts: int,
    passes: int,
    tolerance: float,
    learnt: bool = True,
) -> Iterator[str]:
    """Yield lines that describe the cost of a watch, and of its baseline before any alarm.

    `learnt`: the accuracy of the baseline is learnt, not given.
    """
    day = 86400.0 / every_s if every_s else 0.0
    plain = min(prompts, one.questions(smoke=False))
    mixed = min(prompts, one.questions(smoke=True))
    smoke = {0: "with no smoke test", 1: "with a smoke test"}.get(
        one.smoke_every, f"with a smoke test every {one.smoke_every} rounds"
    )
    asked = (
        f"{mixed}"
        if one.smoke_every == 1
        else f"{mixed} or {plain}"
        if one.smoke_every
        else f"{plain}"
    )
    yield (
        f"each round asks {asked} questions (at most {one.question} tokens each), {smoke},"
        f" and takes at most {one.tokens} tokens"
    )
    if day:
        yield f"per day: {day:.0f} rounds, at most {day * one.tokens:,.0f} tokens"
    cost = describe_cost(one, every_s=every_s, prompts=prompts, passes=passes)
    yield (
        f"the baseline asks {prompts} prompts {passes} times: {cost}. Until it is complete, no"
        " alarm about accuracy or usable answers is possible"
    )
    least = least_fall(prompts, passes, tolerance)
    if learnt and passes > SHORT_PASSES:
        cost = describe_cost(one, every_s=every_s, prompts=prompts, passes=SHORT_PASSES)
        short = least_fall(prompts, SHORT_PASSES, tolerance)
        yield (
            f"--set watch.passes={SHORT_PASSES} gives a shorter baseline with the same error rate:"
            f" {cost}. At best, it notices falls of more than {short:.1%} of the answers; the"
            f" longer one notices falls of more than {least:.1%}"
        )


def describe_probes(per_round: int, count: int, tokens: int, *, every_s: float) -> str:
    """Return a line that describes the cost of `per_round` probes of `count`, `tokens` a round."""
    asked, rounds = min(per_round, count), math.ceil(count / per_round)
    day = f", {86400.0 / every_s * tokens:,.0f} per day" if every_s else ""
    return (
        f"each round asks {asked} probes with at most {tokens:,} of these tokens{day}; all {count}"
        f" are asked once in {rounds} round{'s' if rounds > 1 else ''}. They need no baseline: an"
        " alarm that the model is another one is possible from the first round on"
    )


def least_fall(prompts: int, passes: int, tolerance: float) -> float:
    """Return the fall (0..1) that a watch can notice at best.

    It is the tolerance and the distance of the floor from the mean, if every prompt answers as
    before in all passes (`sequential_monitor.floor`).
    """
    return tolerance + (math.log(1.0 / FLOOR_ALPHA[ACCURACY]) + 2.0) / (prompts * (passes - 1))


def describe_cost(one: Budget, *, every_s: float, prompts: int, passes: int) -> str:
    """Return the rounds of a baseline, their time, and the most tokens that they take.

    The first round asks LEAST questions, since no server has counted their tokens yet.
    """
    rounds = 1 + math.ceil(max(0, prompts * passes - LEAST) / _per_round(one, prompts))
    wait = rounds * every_s
    time = (
        ""
        if not wait
        else f", {wait / 3600:.1f} hours"
        if wait >= 3600
        else f", {wait / 60:.1f} minutes"
        if wait >= 60
        else f", {wait:.0f} seconds"
    )
    smokes = math.ceil(rounds / one.smoke_every) if one.smoke_every else 0
    tokens = prompts * passes * one.question + smokes * one.smoke
    return f"about {rounds} rounds{time}, at most {tokens:,} tokens"


def _per_round(one: Budget, prompts: int) -> float:
    """Return the mean number of questions of a round."""
    plain, mixed = (min(prompts, one.questions(smoke=smoke)) for smoke in (False, True))
    per_round = mixed if one.smoke_every == 1 else (mixed + plain) / 2 if one.smoke_every else plain
    return max(1.0, per_round)
