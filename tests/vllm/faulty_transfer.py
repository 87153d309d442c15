"""Orchestrate real vLLM servers with faults in the hand-over of their KV caches."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
import numpy as np
from aiohttp import web

from serve_eval.launchers._vllm.orchestrator import VllmServer, create_app
from tests.scripted_server import serve_in_thread

Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes what a context server has handed over; gets a request's body and the answer."""
NO_BLOCK = 0
"""The block that vLLM never gives to a prompt."""


@contextmanager
def orchestrated(context, generation, *, by_params=True):
    """Serve an orchestrator of running servers, by their addresses, and yield its base URL."""
    app = create_app(
        [VllmServer("context_0", context)],
        [VllmServer(f"generation_{i}", url) for i, url in enumerate(generation)],
        by_params=by_params,
    )
    with serve_in_thread(app) as url:
        yield url


def choose_one_in(number):
    """Choose one prompt of so many by its hash."""

    def chosen(body, tokens):
        digest = hashlib.sha256(str(body.get("prompt") or body.get("messages")).encode()).digest()
        return int.from_bytes(digest[:4]) % number == 0

    return chosen


choose_tenth = choose_one_in(10)


@contextmanager
def handing_over(context, change, *, one_at_a_time=False):
    """Serve a context server whose hand-over is changed, and yield its address."""
    turn = asyncio.Lock()
    client = httpx.AsyncClient(trust_env=False, timeout=120)

    async def close(app):
        await client.aclose()

    async def pass_on(request):
        body = await request.json()
        async with turn if one_at_a_time else nullcontext():
            reply = await client.post(context + request.path, json=body)
            answer = reply.json()
            change(body, answer)
        return web.json_response(answer, status=reply.status_code)

    async def health(request):
        return web.Response()

    app = web.Application()
    app.on_cleanup.append(close)
    app.router.add_post("/v1/completions", pass_on)
    app.router.add_post("/v1/chat/completions", pass_on)
    app.router.add_get("/health", health)
    with serve_in_thread(app) as url:
        yield url.removesuffix("/v1")


@contextmanager
def foreign_blocks(context, chosen=choose_tenth):
    """Serve a context server that hands over another prompt's blocks for the chosen prompts.

    Yields its address.
    """
    known = {}

    def exchange(body, answer):
        if params := answer.get("kv_transfer_params"):
            own = params["remote_block_ids"]
            size = sum(map(len, _groups(own)))
            if size in known and chosen(body, answer["usage"]["prompt_tokens"]):
                params["remote_block_ids"] = known[size]
            known[size] = own

    with handing_over(context, exchange) as url:
        yield url


def drop_last_block(body, answer):
    """Hand over a block that was never written instead of the last one of the prompt."""
    if params := answer.get("kv_transfer_params"):
        _groups(params["remote_block_ids"])[0][-1] = NO_BLOCK


def _groups(ids):
    """Return the block ids of each group of layers."""
    return ids if ids and isinstance(ids[0], list) else [ids]


LEVELS = 7
"""Of each sign, of a signed number of four bits."""


def damage_files(folder, chosen, damage):
    """Return a change that damages the files that a context server has just written.

    The server must be asked one prompt at a time.
    """
    seen = set()

    def change(body, answer):
        new = set(folder.glob("*/*")) - seen
        seen.update(new)
        if new and chosen(body, (answer.get("usage") or {}).get("prompt_tokens", 0)):
            for file in (file for one in new for file in one.glob("*.safetensors")):
                _rewrite(file, damage)

    return change


def _rewrite(file, damage):
    """Change the values of a file in the format of safetensors with one tensor of float32."""
    raw = file.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    [one] = [value for key, value in json.loads(raw[8:begin]).items() if key != "__metadata__"]
    assert one["dtype"] == "F32"
    values = np.frombuffer(raw[begin:], "<f4").reshape(one["shape"])
    new = file.with_suffix(".new")  # Servers read these files at any time, and only whole ones.
    new.write_bytes(raw[:begin] + damage(file.name, values).astype("<f4").tobytes())
    new.replace(file)


def round_to_four_bits(layer, values):
    """Round every vector of a head and a token to four bits and a scale."""
    scale = np.abs(values).max(axis=-1, keepdims=True) / LEVELS
    scale[scale == 0] = 1
    return np.rint(values / scale) * scale


class OtherPrompts:
    """Replaces values by those that it was given before for another prompt of that length."""

    def __init__(self):
        self._known = {}

    def __call__(self, layer, values):
        """Return what another prompt had, and keep these values for the next one."""
        key = layer, values.shape
        other = self._known.get(key, values)
        self._known[key] = values
        return other
