"""Audit prompts: read each on two sides, and name the causes of differences.

The sides are an endpoint and either the files of its model or another endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from serve_eval.client.client import Client
from serve_eval.evidence.prompt_audit.compare import compare
from serve_eval.evidence.prompt_audit.local import LocalTokenizer
from serve_eval.evidence.prompt_audit.read import reader_of
from serve_eval.evidence.prompt_audit.reading import PromptFinding, PromptReading, PromptSide
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
