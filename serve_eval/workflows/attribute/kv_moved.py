"""Read from a server how many prompt tokens came to it as KV cache from another server."""

from __future__ import annotations

from serve_eval.client.client import Client
from serve_eval.client.questions.engine_metrics import VLLM_ROUTE

KvCounts = dict[str, int | None]
"""Tokens by the URL of a server; None if it does not count them."""


async def count_moved(client: Client) -> int | None:
    """Return the prompt tokens that came to a vLLM from another server.

    None if the server does not count them.
    """
    reading = await client.read_engine(VLLM_ROUTE)
    return None if reading is None else reading.counts.moved_tokens
