"""Find the context length of an endpoint, as far as the endpoint reports it."""

from __future__ import annotations

import asyncio
import re

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.schema import Failure

CONTEXT = "context length"
"""The need that is a number of tokens."""
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
            result = await send_probe(
                client, ping(chat), max_tokens=wanted, stop=(" ", "\n", "2", ".")
            )
    except TimeoutError:
        return None
    if isinstance(result, Failure) and result.status in (400, 413, 422, 500):
        numbers = [int(number) for number in _CONTEXT.findall(result.message)]
        return min(numbers) if numbers else None
    return None
