"""Read from a server how many prompt tokens came to it as KV cache from another server."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from serve_eval.client.client import Client
from serve_eval.schema import Failure

KvCounts = dict[str, float | None]
"""Tokens by the URL of a server; None if it does not count them."""
_COUNTER = re.compile(
    rb'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\}'
    rb" ([0-9.eE+]+)$",
    re.MULTILINE,
)
_FAMILY = b"vllm:prompt_tokens_by_source_total"


async def count_moved(client: Client) -> float | None:
    """Return the prompt tokens that came from another server, by vLLM's /metrics.

    None if the server has no such counter.
    """
    root = urlsplit(client.endpoint.base_url).path.removesuffix("/v1")
    reply = await client.exchange("GET", f"{root}/metrics", timeout_s=10.0)
    if isinstance(reply, Failure) or reply.error is not None or reply.status != 200:
        return None
    found = _COUNTER.findall(reply.content)
    if not found:
        return 0.0 if _FAMILY in reply.content else None
    return sum(map(float, found))
