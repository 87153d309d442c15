"""Fill the cache of a server with prompts that nobody asked before."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from serve_eval.client.client import Client
from serve_eval.schema import Failure, FailureKind, Message, Request, SamplingParams
from serve_eval.workflows.invariants.salting import GONE

LONGEST, SHORTEST = 1000, 16
"""Words of a prompt: as many as the server takes."""
PROMPTS = 32
"""Prompts into which a filling is divided at least, so that its size is met."""
TOKENS_PER_WORD = 3
"""Estimate for made-up words, used only for the length of the first prompt."""


@dataclass(slots=True, kw_only=True)
class _Filling:
    """A filling under way: the prompts so far, and their tokens."""

    client: Client
    wanted: int
    seed: int
    chat: bool
    words: int
    filled: int = 0
    sent: int = 0
    over: bool = field(default=False)

    async def send(self) -> None:
        """Send one prompt for one token. A prompt that is too long halves the next ones."""
        words, number = self.words, self.sent
        self.sent += 1
        text = make_text(self.seed, number, words)
        request = Request(
            sample_id=f"filling {number}",
            prompt=(Message(role="user", content=text),) if self.chat else text,
            sampling=SamplingParams(max_tokens=1),
        )
        result = await self.client.send(request, once=True)
        if not isinstance(result, Failure):
            self.filled += result.usage.prompt_tokens or words
        elif result.kind is FailureKind.HTTP_ERROR and result.status in (400, 413, 422):
            if words <= SHORTEST:
                self.over = True
            self.words = min(self.words, max(SHORTEST, words // 2))
        elif result.kind in GONE or not result.retryable:
            self.over = True

    async def work(self) -> None:
        """Send prompts until the filling is complete, or the server takes none."""
        while self.filled < self.wanted and not self.over:
            await self.send()


async def fill(client: Client, wanted: int, at_a_time: int, seed: int, *, chat: bool) -> int:
    """Send other prompts of about `wanted` tokens; return the tokens that the server counted.

    They are fewer if the server stops taking prompts: the next pass finds out what is wrong.
    """
    words = min(LONGEST, max(SHORTEST, wanted // (PROMPTS * TOKENS_PER_WORD)))
    filling = _Filling(client=client, wanted=wanted, seed=seed, chat=chat, words=words)
    while not filling.filled and not filling.over:
        await filling.send()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_a_time, PROMPTS // 4)):
            group.create_task(filling.work())
    return filling.filled


def make_text(seed: int, number: int, words: int) -> str:
    """Return made-up words, which differ from those of any other number from the first one on."""
    rng = random.Random(f"filling:{seed}:{number}")
    return " ".join(
        "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        for _ in range(words)
    )
