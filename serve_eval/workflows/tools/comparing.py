"""Compare passes request by request: loads, forms, and a reference.

Each comparison counts the answers that got worse and those that got better, and tests the two
numbers exactly: on a sound server another batch changes answers in both directions alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from serve_eval.schema import ToolAgainst
from serve_eval.scorers._call_faults import CallFault
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.workflows.tools.answers import Answers, CheckedAnswer, ToolPass

LOST_PART, LOST_REASONING = "lost part", "lost reasoning"
PROMPT_COUNT, ANSWER_COUNT = "prompt tokens differ", "answer tokens differ"
SHARE_REASONED, FEWEST = 0.9, 10
"""Share of the answers without a call that have reasoning, and the fewest answers, from which
answers with a call that never have any accuse."""
SLACK_TOKENS = 2
"""Tokens by which counts of equal answers may differ: some servers count the end."""
POINTS: Mapping[str, str] = {
    LOST_PART: "the stream ends too early: its last piece is dropped, or a parser holds it back",
    LOST_REASONING: "the reasoning parser loses the thoughts before a call or in a stream",
    PROMPT_COUNT: "usage: the same request has another number of prompt tokens",
    ANSWER_COUNT: "usage: the same answer has another number of tokens",
}


class PassComparison(NamedTuple):
    """Answers that got worse and better from one pass to another. Without a `p`, one is enough."""

    name: str
    cell: str
    against: ToolAgainst
    worse: int
    better: int
    paired: int
    p: float | None
    examples: tuple[tuple[str, str], ...]


Sides = Sequence[tuple[str, CheckedAnswer, CheckedAnswer]]
"""The requests that both passes answered, with both answers."""


def compare_passes(
    base: ToolPass, other: ToolPass, against: ToolAgainst
) -> Iterator[PassComparison]:
    """Yield the comparisons of a pass with one that it should equal."""
    sides = [
        (prompt, base.answers[prompt], answer)
        for prompt, answer in other.answers.items()
        if prompt in base.answers
    ]
    for fault in CallFault:
        worse = [s for s in sides if fault in s[2].faults and fault not in s[1].faults]
        better = [s for s in sides if fault in s[1].faults and fault not in s[2].faults]
        yield _compare(fault.value, other, against, worse, better, len(sides))
    worse = [s for s in sides if s[1].reasoned and not s[2].reasoned]
    better = [s for s in sides if s[2].reasoned and not s[1].reasoned]
    yield _compare(LOST_REASONING, other, against, worse, better, len(sides))
    if against in ("whole answer", "lowest load"):
        worse = [s for s in sides if is_shorter(s[2], s[1])]
        better = [s for s in sides if is_shorter(s[1], s[2])]
        yield _compare(LOST_PART, other, against, worse, better, len(sides))
    yield _count_differences(PROMPT_COUNT, other, against, _differ_in_prompts(sides), len(sides))
    if against != "reference":  # Engines count the end of an answer differently.
        differing = _differ_in_counts(sides)
        yield _count_differences(ANSWER_COUNT, other, against, differing, len(sides))


def is_shorter(one: CheckedAnswer, other: CheckedAnswer) -> bool:
    """Return True if an answer lacks the end of one or more parts of another, and is else equal."""
    if one.meant == other.meant or len(one.parts) > len(other.parts):
        return False
    padded = one.parts + ("",) * (len(other.parts) - len(one.parts))
    return all(b.startswith(a) for a, b in zip(padded, other.parts, strict=True))


def find_unthinking(one: ToolPass) -> PassComparison | None:
    """Return that a pass shows thoughts before texts and never before calls, if it does."""
    free = {prompt: answer for prompt, answer in one.answers.items() if answer.chose}
    called = {prompt: answer for prompt, answer in free.items() if answer.called}
    others = [answer for prompt, answer in free.items() if prompt not in called]
    if min(len(called), len(others)) < FEWEST or any(a.reasoned for a in called.values()):
        return None
    if sum(answer.reasoned for answer in others) < SHARE_REASONED * len(others):
        return None
    examples = tuple((prompt, answer.said) for prompt, answer in list(called.items())[:2])
    count = len(called)
    return PassComparison(LOST_REASONING, one.name, "itself", count, 0, count, None, examples)


def _compare(
    name: str, other: ToolPass, against: ToolAgainst, worse: Sides, better: Sides, paired: int
) -> PassComparison:
    p = mcnemar(len(worse), len(better)).p_exact_two_sided
    examples = tuple((prompt, answer.said) for prompt, _, answer in worse[:2])
    counts = (len(worse), len(better), paired)
    return PassComparison(name, other.name, against, *counts, p, examples)


def _count_differences(
    name: str, other: ToolPass, against: ToolAgainst, found: Sides, paired: int
) -> PassComparison:
    examples = tuple(
        (prompt, f"{_count(before)}, then {_count(after)}") for prompt, before, after in found[:2]
    )
    return PassComparison(name, other.name, against, len(found), 0, paired, None, examples)


def _count(answer: CheckedAnswer) -> str:
    hidden = answer.usage.reasoning_tokens
    thoughts = f" ({hidden} of thoughts)" if hidden else ""
    return f"{answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens{thoughts}"


def _differ_in_prompts(sides: Sides) -> Sides:
    return [
        s
        for s in sides
        if s[1].usage.prompt_tokens
        and s[2].usage.prompt_tokens
        and s[1].usage.prompt_tokens != s[2].usage.prompt_tokens
    ]


def _differ_in_counts(sides: Sides) -> Sides:
    return [
        s
        for s in sides
        if s[1].meant == s[2].meant
        and s[1].usage.completion_tokens
        and s[2].usage.completion_tokens
        and abs(s[1].usage.shown_tokens - s[2].usage.shown_tokens) > SLACK_TOKENS
    ]


def count_unequal(one: Answers, other: Answers) -> tuple[int, int]:
    """Return how many answers of two passes differ in any part, of how many that both have.

    Arguments are compared as JSON.
    """
    both = [prompt for prompt in one if prompt in other]
    return sum(one[prompt].meant != other[prompt].meant for prompt in both), len(both)
