"""An endpoint whose answers and state a test changes while it is watched."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from serve_eval.schema import Message
from tests import skills


@dataclass
class Endpoint:
    """`wrong`: every so many questions are answered wrong, `failing`: with HTTP 500 (0: none). `empty`: with nothing.
    `seen` are the bodies that came, `alarms` those of the webhook, which says `refusal` as long as there is one."""

    wrong: int = 0
    failing: int = 0
    empty: bool = False
    chat: bool = True
    seen: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat if self.chat else self._nothing)
        app.router.add_post("/v1/completions", self._text)
        app.router.add_post("/hook", self._hook)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def _nothing(self, request: web.Request) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        return self._answer(body, body["messages"][-1]["content"], chat=True)

    async def _text(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        return self._answer(body, body["prompt"], chat=False)

    def _answer(self, body: dict[str, Any], prompt: str, *, chat: bool) -> web.Response:
        self.seen.append(body)
        number = len(self.seen)
        if self.failing and number % self.failing == 0:
            return web.Response(status=500, text="Internal Server Error")
        text = skills.answer((Message(role="user", content=prompt),)) or "hm"
        if self.wrong and number % self.wrong == 0:
            text = "I do not know"
        if self.empty:
            text = ""
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": 20, "completion_tokens": 4}
        return web.json_response({"choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": usage})

    async def _hook(self, request: web.Request) -> web.Response:
        if self.refusals:
            return web.Response(status=self.refusals.pop(0))
        self.alarms.append(json.loads(await request.read()))
        return web.Response(status=204)
