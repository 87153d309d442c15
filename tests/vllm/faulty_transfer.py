"""An orchestrator of real vLLM servers whose hand-over is faulty."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from aiohttp import web

from launchers._vllm.orchestrator import VllmServer, create_app
from tests.scripted_server import serve_in_thread

CHANGED = 10
"""Of this many prompts, one gets the blocks of another request."""


@contextmanager
def orchestrated(context: str, generation: Sequence[str]) -> Iterator[str]:
    """Serve an orchestrator of running servers, by their addresses, and yield its base URL."""
    app = create_app(
        [VllmServer("context_0", context)],
        [VllmServer(f"generation_{i}", url) for i, url in enumerate(generation)],
        by_params=True,
    )
    with serve_in_thread(app) as url:
        yield url


Chosen = Callable[[dict[str, Any], int], bool]
"""Says of a request's body and its number of prompt tokens whether its blocks are exchanged."""


def choose_tenth(body: dict[str, Any], tokens: int) -> bool:
    """Choose one prompt of CHANGED by its hash."""
    digest = hashlib.sha256(str(body.get("prompt")).encode()).digest()
    return digest[0] % CHANGED == 0


@contextmanager
def foreign_blocks(context: str, chosen: Chosen = choose_tenth) -> Iterator[str]:
    """Serve a context server that hands over another prompt's blocks for the chosen prompts.

    Yields its address.
    """
    known: dict[int, Any] = {}

    async def pass_on(request: web.Request) -> web.Response:
        body = await request.json()
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            reply = await client.post(context + request.path, json=body)
        answer = reply.json()
        if params := answer.get("kv_transfer_params"):
            own = params["remote_block_ids"]
            size = len(own[0]) if own and isinstance(own[0], list) else len(own)
            if size in known and chosen(body, answer["usage"]["prompt_tokens"]):
                params["remote_block_ids"] = known[size]
            known[size] = own
        return web.json_response(answer, status=reply.status_code)

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/completions", pass_on)
    app.router.add_post("/v1/chat/completions", pass_on)
    app.router.add_get("/health", health)
    with serve_in_thread(app) as url:
        yield url.removesuffix("/v1")
