"""Find the context length of an endpoint, as far as the endpoint reports it."""

from __future__ import annotations

import asyncio
import re

from serve_eval.client.client import Client
from serve_eval.client.wire_format.refusal import shorten
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.evaluation.engine.request import request_of
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Ability, Failure, Prompt

CONTEXT = "context length"
"""The need that is a number of tokens."""
LONGER = "Serve the model with a longer context, or request shorter answers (max_tokens)."
SMALLEST = 512
"""Tokens that fit every context, so that most tasks are not probed."""
CHARS_PER_TOKEN = 2
"""Texts of tasks have more: a sample that fits by this number is not doubted."""
SOON = (" ", "\n", "2", ".")
"""Stop strings that end an answer immediately."""
CONTEXT_S = 60.0
"""Maximum seconds for the probe: a server that accepts the request could keep generating."""
_CONTEXT = re.compile(
    r"(?:maximum context length|max_model_len|max_seq_len|context"
    r" (?:length|window|size))\D{0,40}?(\d{2,})",
    re.IGNORECASE,
)


async def context_length(client: Client, wanted: int, *, chat: bool) -> int | None:
    """Return the context length in tokens, from /v1/models or from a refused request.

    That request asks for an answer of `wanted` tokens. If it is not refused, a stop string ends the
    answer immediately.
    """
    if (told := await client.context_tokens()) is not None:
        return told
    try:
        async with asyncio.timeout(CONTEXT_S):
            result = await send_probe(client, ping(chat), max_tokens=wanted, stop=SOON)
    except TimeoutError:
        return None
    if isinstance(result, Failure) and result.status in (400, 413, 422, 500):
        return read_context(result.message)
    return None


def read_context(message: str) -> int | None:
    """Return the context length that a refusal names, in tokens, or None."""
    numbers = [int(number) for number in _CONTEXT.findall(message)]
    return min(numbers) if numbers else None


async def refuses_shortest(client: Client, prepared: PreparedTask) -> Ability | None:
    """Return the lack of context for a task of which not even the shortest sample fits, or None.

    Only a server that reports its context length is asked, and only if the length of the text
    leaves room for doubt: then the sample is sent once, with stop strings that end the answer soon.
    """
    shortest = min(prepared.dataset.samples, key=lambda sample: _length(sample.prompt))
    asked = request_of(prepared.task, shortest)
    answer = 1 if asked.prompt_logprobs else asked.sampling.max_tokens
    most = _length(asked.prompt) // CHARS_PER_TOKEN + answer
    if most <= SMALLEST or (limit := await client.context_tokens()) is None or most <= limit:
        return None
    try:
        async with asyncio.timeout(CONTEXT_S):
            result = await send_probe(
                client,
                asked.prompt,
                max_tokens=asked.sampling.max_tokens,
                stop=SOON,
                extra=asked.extra,
                prompt_logprobs=asked.prompt_logprobs,
            )
    except TimeoutError:
        return None
    if not isinstance(result, Failure) or read_context(result.message) is None:
        return None
    seen = (
        f"the endpoint takes {limit} tokens, and not even the shortest prompt of the task fits:"
        f" {shorten(result.message)}"
    )
    return Ability(need=CONTEXT, works=False, seen=seen, help=LONGER)


def _length(prompt: Prompt) -> int:
    """Return the characters of a prompt."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(turn.content)) for turn in prompt)
