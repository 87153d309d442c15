"""An orchestrator of real vLLM servers, and faults of the hand-over between them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
from aiohttp import web

from serve_eval.launchers._vllm.orchestrator import VllmServer, create_app
from tests.scripted_server import serve_in_thread

Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes what a context server has handed over; gets a request's body and the answer."""
Chosen = Callable[[dict[str, Any], int], bool]
"""Says of a request's body and its number of prompt tokens whether it is damaged."""
NO_BLOCK = 0
"""The block that vLLM never gives to a prompt."""


@contextmanager
def orchestrated(
    context: str, generation: Sequence[str], *, by_params: bool = True
) -> Iterator[str]:
    """Serve an orchestrator of running servers, by their addresses, and yield its base URL."""
    app = create_app(
        [VllmServer("context_0", context)],
        [VllmServer(f"generation_{i}", url) for i, url in enumerate(generation)],
        by_params=by_params,
    )
    with serve_in_thread(app) as url:
        yield url


def choose_one_in(number: int) -> Chosen:
    """Choose one prompt of so many by its hash."""

    def chosen(body: dict[str, Any], tokens: int) -> bool:
        digest = hashlib.sha256(str(body.get("prompt") or body.get("messages")).encode()).digest()
        return int.from_bytes(digest[:4]) % number == 0

    return chosen


choose_tenth = choose_one_in(10)


@contextmanager
def handing_over(context: str, change: Change, *, one_at_a_time: bool = False) -> Iterator[str]:
    """Serve a context server whose hand-over is changed, and yield its address."""
    turn = asyncio.Lock()
    client = httpx.AsyncClient(trust_env=False, timeout=120)

    async def close(app: web.Application) -> None:
        await client.aclose()

    async def pass_on(request: web.Request) -> web.Response:
        body = await request.json()
        async with turn if one_at_a_time else nullcontext():
            reply = await client.post(context + request.path, json=body)
            answer = reply.json()
            change(body, answer)
        return web.json_response(answer, status=reply.status_code)

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.on_cleanup.append(close)
    app.router.add_post("/v1/completions", pass_on)
    app.router.add_post("/v1/chat/completions", pass_on)
    app.router.add_get("/health", health)
    with serve_in_thread(app) as url:
        yield url.removesuffix("/v1")


@contextmanager
def foreign_blocks(context: str, chosen: Chosen = choose_tenth) -> Iterator[str]:
    """Serve a context server that hands over another prompt's blocks for the chosen prompts.

    Yields its address.
    """
    known: dict[int, Any] = {}

    def exchange(body: dict[str, Any], answer: dict[str, Any]) -> None:
        if params := answer.get("kv_transfer_params"):
            own = params["remote_block_ids"]
            size = sum(map(len, _groups(own)))
            if size in known and chosen(body, answer["usage"]["prompt_tokens"]):
                params["remote_block_ids"] = known[size]
            known[size] = own

    with handing_over(context, exchange) as url:
        yield url


def drop_last_block(body: dict[str, Any], answer: dict[str, Any]) -> None:
    """Hand over a block that was never written instead of the last one of the prompt."""
    if params := answer.get("kv_transfer_params"):
        _groups(params["remote_block_ids"])[0][-1] = NO_BLOCK


def _groups(ids: Any) -> list[list[int]]:
    """Return the block ids of each group of layers."""
    return ids if ids and isinstance(ids[0], list) else [ids]
