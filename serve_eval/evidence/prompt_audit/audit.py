"""Audit prompts: compare the tokens, or their counts, on two sides.

The sides are an endpoint and either the files of its model or another endpoint.

Every server reports these counts, also one that gives no token ids.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from serve_eval.client.client import Client
from serve_eval.evidence.prompt_audit.compare import compare
from serve_eval.evidence.prompt_audit.local_tokens import LocalTokenizer
from serve_eval.evidence.prompt_audit.reading import PromptFinding, PromptReading, PromptSide
from serve_eval.evidence.prompt_audit.server_tokens import reader_of
from serve_eval.schema import Message, Prompt

PROMPTS: tuple[Prompt, ...] = (
    "The capital of France is",
    (Message(role="user", content="Name a colour."),),
    (Message(role="user", content="  Name a colour.\n\n"),),
    (
        Message(role="system", content="Answer in one word."),
        Message(role="user", content="Name a colour."),
        Message(role="assistant", content="Red"),
        Message(role="user", content="Name another."),
    ),
)
"""Prompts for an audit: a text, a chat, one with white space at its ends, and one of four turns."""


async def audit(
    endpoint: Client | PromptSide,
    other: Client | PromptSide,
    prompts: Sequence[Prompt] = PROMPTS,
    *,
    today: date | None = None,
) -> list[PromptFinding]:
    """Return the findings about each prompt at an endpoint, compared with another side.

    Prompts are asked one after the other, each with a few requests of one token at most. A failed
    request is never raised: its prompt is NOT_READ. `today` is the date in UTC unless given.
    """
    sides = [reader_of(one) if isinstance(one, Client) else one for one in (endpoint, other)]
    day = datetime.now(UTC).date() if today is None else today
    findings = []
    for prompt in prompts:
        found, expected = await asyncio.gather(*(side.read(prompt) for side in sides))
        if isinstance(other, LocalTokenizer):
            found = add_pieces(found, other)
        findings += compare(expected, found, prompt=prompt, today=day)
    return findings


def add_pieces(found: PromptReading, local: LocalTokenizer) -> PromptReading:
    """Return a reading with the texts of its ids and the first token as the files have them."""
    pieces = None if found.ids is None else local.pieces(found.ids)
    return replace(found, pieces=pieces or found.pieces)


LEAST, SAME_SHARE = 10, 0.95
"""Fewest prompts that are compared, and the share of them that has to differ by the same number of
tokens to have one cause."""


@dataclass(frozen=True, slots=True)
class CountedGap:
    """The difference of the counts: `tokens` in `prompts` of `of` prompts.

    `tokens` is positive if the second side counts more, 0 if both always count the same, and None
    if the difference is not the same in most prompts.
    """

    tokens: int | None
    prompts: int
    of: int

    @property
    def amount(self) -> str:
        """The size and the direction of the difference."""
        if not self.tokens:
            return "other numbers of tokens"
        word = "more" if self.tokens > 0 else "fewer"
        return f"{abs(self.tokens)} token{'s' if abs(self.tokens) > 1 else ''} {word}"

    @property
    def cause(self) -> str:
        """The probable cause, for the side that counts otherwise."""
        if self.tokens is None:
            return "another tokenizer, or white space is stripped"
        if self.tokens == 1:
            return "it adds the first token twice, or one that the other side does not add"
        if self.tokens == -1:
            return "the first token is missing"
        return "another chat template, such as one that " + (
            "adds a system message or a date" if self.tokens > 0 else "drops a system message"
        )


def find_gap(gaps: Sequence[int]) -> CountedGap | None:
    """Return the difference of two sides' counts, or None if too few prompts are compared.

    `gaps` has by how many tokens the second side counts each prompt longer.
    """
    if len(gaps) < LEAST:
        return None
    gap, same = Counter(gaps).most_common(1)[0]
    if not any(gaps):
        return CountedGap(0, same, len(gaps))
    if gap and same >= SAME_SHARE * len(gaps):
        return CountedGap(gap, same, len(gaps))
    return CountedGap(None, sum(one != 0 for one in gaps), len(gaps))
