"""A small endpoint that knows the right answers to word problems and does one thing wrong, and runs against it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from launchers._simulated.simulator import serve
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Endpoint, Limits, Plan, Prompt, Report, Spec

MODEL = "m"
TOKENS = 12
"""Tokens that an answer is told to have."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: its number from 0 among those that are no probe, and how many are being answered with it."""

    number: int
    in_flight: int
    body: Mapping[str, Any]
    target: str

    def chance(self, what: str) -> float:
        """A number between 0 and 1 that the prompt alone decides."""
        digest = hashlib.sha256(f"{what}:{self.target}:{_key(self.body)}".encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer. With a `status` from 400 on, `text` is the message of an error."""

    text: str
    finish: str = "stop"
    stop_reason: str | None = None
    tokens: int = TOKENS
    status: int = 200
    delay_s: float = 0.0


Act = Callable[[Asked], Said]


def sound(asked: Asked, accuracy: float = 0.95) -> Said:
    """Right for most prompts."""
    right = asked.chance("right") < accuracy
    return Said(text=asked.target if right else f"{asked.target}1")


def answers_to(spec: Spec) -> dict[str, str]:
    """The right answer to each prompt of a task."""
    samples = build_task(spec).load(DataRoots(), int(str(spec.options["num_samples"]))).samples
    return {_text(sample.prompt): sample.target for sample in samples}


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1].text


def _key(body: Mapping[str, Any]) -> str:
    return str(body["prompt"] if "prompt" in body else body["messages"][-1]["content"])


@dataclass(kw_only=True)
class Server:
    """Answers as `act` says; keeps the bytes of every request. `metrics` is the text of /prometheus/metrics, which an
    orchestrator has, by how often it was asked for. A stream ends without its answer where `loses_streams`."""

    act: Act
    answers: Mapping[str, str]
    models: tuple[str, ...] = (MODEL,)
    metrics: Callable[[int], str] | None = None
    loses_streams: bool = False
    chat: bool = True
    more_prompt_tokens: int = 0
    received: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    _numbers: int = 0
    _in_flight: int = 0
    _scrapes: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        if self.chat:
            app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/v1/models", self._models)
        if self.metrics is not None:
            app.router.add_get("/version", self._version)
            app.router.add_get("/prometheus/metrics/", self._metrics)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "1.2.1"})

    async def _metrics(self, request: web.Request) -> web.Response:
        assert self.metrics is not None
        self._scrapes += 1
        return web.Response(text=self.metrics(self._scrapes))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.received.append(raw)
        self.keys.append(request.headers.get("Authorization"))
        body = json.loads(raw)
        target = self.answers.get(_key(body))
        if target is None:
            return self._whole(body, Said(text="4", tokens=1))
        self._in_flight += 1
        asked = Asked(number=self._numbers, in_flight=self._in_flight, body=body, target=target)
        self._numbers += 1
        said = self.act(asked)
        try:
            await asyncio.sleep(said.delay_s)
        finally:
            self._in_flight -= 1
        if said.status >= 400:
            return web.json_response({"object": "error", "message": said.text}, status=said.status)
        if body.get("stream"):
            return await self._stream(request, body, said)
        return self._whole(body, said)

    def _whole(self, body: Mapping[str, Any], said: Said) -> web.Response:
        part = {"text": said.text} if "prompt" in body else {"message": {"role": "assistant", "content": said.text}}
        choice = {"index": 0, **part, "finish_reason": said.finish, "stop_reason": said.stop_reason}
        usage = {"prompt_tokens": 20 + self.more_prompt_tokens, "completion_tokens": said.tokens}
        return web.json_response({"id": "x", "choices": [choice], "usage": usage})

    async def _stream(self, request: web.Request, body: Mapping[str, Any], said: Said) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if not self.loses_streams:
            part = {"text": said.text} if "prompt" in body else {"delta": {"content": said.text}}
            event = {"choices": [{"index": 0, **part, "finish_reason": said.finish}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def plan_for(folder: Path, *, accuracy: float = 90.0, protocol: str = "", **options: object) -> Plan:
    """A plan for word problems, judged against a reference of our own; `options` are those of the task."""
    (folder / "references").mkdir(parents=True, exist_ok=True)
    text = f"{MODEL}:\n  - accuracy: {accuracy}\n    source: declared by the tests\n{protocol}"
    (folder / "references" / "word_problems.yaml").write_text(text)
    return Plan(
        model=MODEL,
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="word_problems", options={"num_samples": 100, **options}),),
        references_dir=str(folder / "references"),
        limits=Limits(concurrency=8, max_attempts=1, max_error_rate=1.0, order_seed=1),
    )


def run(
    plan: Plan,
    server: Server,
    out: Path,
    environ: Mapping[str, str] | None = None,
    info: Mapping[str, object] | None = None,
) -> Report:
    """A real evaluation of the server over a socket. `info` is what a launcher would tell of it."""

    async def evaluated() -> Report:
        async with serve(server.app()) as url:
            here = replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            endpoint = Endpoint(base_url=url, model=plan.model, info=info or {})
            return await evaluate(here, out, environ=environ or {}, launching=lambda *_: nullcontext(endpoint))

    return asyncio.run(evaluated())
