"""An endpoint that counts what it is asked: every chat prompt that begins with "Question", and every other text."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class Counting:
    """Answers every prompt with its last word, counted by prompt. `refused` prompts get a 400; `version` is told."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.continued = 0
        self.refused: set[str] = set()
        self.version = "1.0"
        self.url = ""
        self.pause_s = 0.0

    def taken(self) -> Counter[str]:
        """What was asked since the last call."""
        asked, self.asked = self.asked, Counter()
        return asked

    async def chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        text = str(body["messages"][-1]["content"])
        if text.startswith("Question"):
            self.asked[text] += 1
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
        if text in self.refused:
            return web.json_response({"error": {"message": "no"}}, status=400)
        answer = text.split()[-1].rstrip("?")
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]})

    async def completions(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.continued += body["max_tokens"] > 2  # the others are asked before a run
        return web.json_response({"choices": [{"index": 0, "text": " 1", "finish_reason": "stop"}]})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def told_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})


@contextmanager
def counting() -> Iterator[Counting]:
    """The endpoint on a free port, served by a thread until the end of the block."""
    endpoint, loop, up = Counting(), asyncio.new_event_loop(), threading.Event()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_post("/v1/completions", endpoint.completions)
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_get("/version", endpoint.told_version)
    runner = web.AppRunner(app, access_log=None)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint.url = f"http://{':'.join(map(str, runner.addresses[0][:2]))}/v1"
        up.set()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert up.wait(30)
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
