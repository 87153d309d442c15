"""Serve an OpenAI-compatible endpoint without a model, which looks answers up in a file.

`python -m serve_eval.launchers._simulated` runs it as a process. `answer_file` describes how chance
decides the answer to a prompt. The jitter of the latency depends on the seed and the request's
number.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

import msgspec
from aiohttp import web

from serve_eval.launchers._http import responses
from serve_eval.launchers._http.answers import Beginning, Generated, gives_logprobs, with_prompt
from serve_eval.launchers._http.requests import (
    DEFAULT_MAX_TOKENS,
    RefusedRequest,
    bad_request,
    encode,
    openai_error,
    refuse_too_few,
    refuse_too_long,
    refuse_unknown_fields,
    trtllm_error,
    understand,
)
from serve_eval.launchers._http.server import json_response, send_stream, serve_app
from serve_eval.launchers._simulated import answers
from serve_eval.launchers._simulated.answers import AnswerFile, Asked, events, whole
from serve_eval.launchers._simulated.config import BadAnswer, Fault, Refusal, SimulatorConfig
from serve_eval.launchers._simulated.media import accept_media
from serve_eval.schema import Prompt
from serve_eval.schema.media import uniform

__all__ = ["STATS", "SimulatorConfig", "Stats", "create_app", "serve"]

MAX_BODY_BYTES = 256 * 1024 * 1024
RECORDED = 1000
"""Number of requests, the latest ones, whose bodies and headers `record` keeps."""


@dataclass(slots=True)
class Stats:
    """Requests that the server has received, for tests in the same process.

    `requests` counts them by prompt hash. `max_concurrent` is the highest number in progress at the
    same time. `bodies` and `headers` are those of the latest requests, if `record` is set.
    """

    requests: Counter[str] = field(default_factory=Counter)
    concurrent: int = 0
    max_concurrent: int = 0
    bodies: deque[Any] = field(default_factory=lambda: deque(maxlen=RECORDED))
    headers: deque[Mapping[str, str]] = field(default_factory=lambda: deque(maxlen=RECORDED))


STATS = web.AppKey("stats", Stats)
"""Key of the Stats of an application."""


def create_app(config: SimulatorConfig) -> web.Application:
    """Return the server as an aiohttp application.

    Raises OSError or msgspec.MsgspecError for a bad answer file.
    """
    simulator = _Simulator(config)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app[STATS] = simulator.stats
    if not config.no_completions:
        app.router.add_post("/v1/completions", simulator.completions)
    if not config.no_chat:
        app.router.add_post("/v1/chat/completions", simulator.chat_completions)
        app.router.add_post(responses.PATH, simulator.responses)
    app.router.add_get("/health", _health)
    app.router.add_get("/version", _version)
    told = encode({"bos_token": config.begins_with or None, "eos_token": {"content": "<end>"}})
    routes: dict[str, str] = {"vllm": "/tokenizer_info", "llama_cpp": "/props"}
    if config.tells_beginning in routes:
        app.router.add_get(routes[config.tells_beginning], partial(_describe, told))
    if not config.no_models:
        app.router.add_get("/v1/models", simulator.models)
    return app


def serve(
    simulator: SimulatorConfig | web.Application, *, port: int = 0
) -> AbstractAsyncContextManager[str]:
    """Serve on 127.0.0.1 and yield the base URL `http://127.0.0.1:PORT/v1`.

    `port` 0 means any free one. Raises OSError if the port is taken.
    """
    return serve_app(
        simulator if isinstance(simulator, web.Application) else create_app(simulator), port=port
    )


class _Simulator:
    """Answers requests. It makes the random choices when it reads the answer file."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config, self.stats = config, Stats()
        self._beginning = Beginning(mark=config.begins_with, puts=config.puts_beginning)
        self.answers = AnswerFile(config)
        self._received = 0
        models = {
            "id": config.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "simulated",
        }
        self._models = encode({"object": "list", "data": [models]})

    async def models(self, request: web.Request) -> web.Response:
        if refused := self._refuse_unauthorized(request):
            return refused
        return json_response(200, self._models)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True, items=True)

    def _refuse_unauthorized(self, request: web.Request) -> web.Response | None:
        key = self.config.api_key
        if key is None or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return json_response(
            401, encode(openai_error("Incorrect API key provided.", "invalid_api_key"))
        )

    async def _receive(
        self, request: web.Request, *, chat: bool, items: bool = False
    ) -> web.StreamResponse:
        if refused := self._refuse_unauthorized(request):
            return refused
        stats = self.stats
        self._received += 1
        if self.config.crash_after is not None and self._received > self.config.crash_after:
            sys.stderr.write(f"crashing after {self.config.crash_after} requests, as configured\n")
            sys.stderr.flush()
            os._exit(1)
        number = self._received
        stats.concurrent += 1
        stats.max_concurrent = max(stats.max_concurrent, stats.concurrent)
        try:
            raw = await request.read()
            through = responses.to_chat(raw) if items else None
            raw = raw if through is None else through.raw
            asked = self._understand(raw, request.headers, chat)
            await self._wait(number)
            generated = self._generate(asked)
            if self._fails(asked):
                return await reply(self.config.failure_kind, request, asked, number, generated)
            if asked.ask.stream:
                told = events(asked, number, generated)
                return await responses.send_events(request, told, through)
            return json_response(
                200, responses.write_whole(whole(asked, number, generated), through)
            )
        except RefusedRequest as error:
            return json_response(error.status, encode(error.body))
        finally:
            stats.concurrent -= 1

    def _understand(self, raw: bytes, headers: Mapping[str, str], chat: bool) -> Asked:
        """Return the parsed request. Raises RefusedRequest for one that is not served."""
        config = self.config
        if config.record or config.strict_fields:
            self._look_closely(raw, headers, chat)
        models = None if config.any_model else {config.model}
        ask = understand(raw, chat=chat, models=models)
        ask = replace(ask, tools=()) if config.no_tools else ask
        prompts = [prompt for prompt in ask.prompts if not isinstance(prompt, list)]
        if len(prompts) < len(ask.prompts):
            raise bad_request("prompts of token ids are not simulated")
        if ask.n != 1:
            raise bad_request("only n = 1 is served")
        prompts = [accept_media(prompt, config) for prompt in prompts]
        max_tokens = DEFAULT_MAX_TOKENS if ask.max_tokens is None else ask.max_tokens
        refuse_too_few(max_tokens)
        shown = len(encode(ask.tools).split(b",")) if ask.tools else 0
        lengths = [self._length(prompt, ask.truncate) + shown for prompt in prompts]
        refuse_too_long(max(lengths) + max_tokens, config.context_tokens)
        hashes = [self.answers.find_key(prompt) for prompt in prompts]
        asked = Asked(ask, prompts, hashes, max_tokens, sum(lengths))
        self.stats.requests.update(asked.hashes)
        return asked

    def _length(self, prompt: Prompt, truncate: int | None) -> int:
        marks, rest = self._beginning.rest(prompt) if isinstance(prompt, str) else ([], prompt)
        length = len(marks) + answers.of_prompt(rest, None)
        return length if truncate is None else min(length, truncate)

    def _look_closely(self, raw: bytes, headers: Mapping[str, str], chat: bool) -> None:
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if self.config.record:
            self.stats.bodies.append(body)
            self.stats.headers.append(dict(headers))
        if self.config.strict_fields and isinstance(body, dict):
            refuse_unknown_fields(body, chat=chat)

    async def _wait(self, number: int) -> None:
        config = self.config
        if config.latency_s or config.latency_jitter_s:
            jitter = config.latency_jitter_s and config.latency_jitter_s * uniform(
                f"{config.seed}:latency:{number}"
            )
            await asyncio.sleep(config.latency_s + jitter)

    def _fails(self, asked: Asked) -> bool:
        """Return True if this request fails; call it once per request, after counting it."""
        config = self.config
        if not config.failure_rate:
            return False
        chosen = [
            key for key in asked.hashes if config.failure_rate >= 1.0 or key in self.answers.failing
        ]
        return any(
            not config.failures_per_prompt or self.stats.requests[key] <= config.failures_per_prompt
            for key in chosen
        )

    def _generate(self, asked: Asked) -> list[Generated]:
        steps, found = self.config.tokens_per_step, []
        told = gives_logprobs(asked.ask, self.config.prompt_logprobs)
        for key, prompt in zip(asked.hashes, asked.prompts, strict=True):
            one = answers.limit(
                self.answers.answer(key, asked.ask), 1 if told else asked.max_tokens, asked.ask.stop
            )
            if isinstance(prompt, str):
                one = one._replace(prompt_text=prompt)
                if told:
                    form = self.config.prompt_logprobs
                    one = with_prompt(one, asked.ask.truncate, form, self._beginning)
            one = answers.split_calls(one, asked.ask)
            found.append(one if steps is None else one._replace(tokens_per_step=steps))
        return found


async def _describe(body: bytes, request: web.Request) -> web.Response:
    return json_response(200, body)


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return json_response(200, b'{"version":"simulator"}')


async def reply(
    kind: Fault, request: web.Request, asked: Asked, number: int, sound: Sequence[Generated]
) -> web.StreamResponse:
    """Fail in the given way. `sound` is the answer that the request would have got."""
    match kind:
        case "disconnect":
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        case "hang":
            await asyncio.Event().wait()
            return web.Response()
        case "stream_without_finish":
            return await send_stream(request, events(asked, number, sound, finish=False))
        case "empty_choices" | "null_content" | "bad_json":
            return json_response(200, bad_answer(kind, asked, number, sound))
        case "500" | "429" | "503" | "html" | "wrapped_400":
            return refusal(kind, request.path)
        case _:
            assert_never(kind)


def refusal(kind: Refusal, path: str) -> web.Response:
    """Refuse a request to `path` in the form of trtllm-serve, its orchestrator or a gateway."""
    match kind:
        case "500":
            return json_response(500, encode({"detail": "Internal server error simulated failure"}))
        case "429":
            body = trtllm_error("Simulated overload", "TooManyRequests", 429)
            return json_response(429, encode(body), {"Retry-After": "0"})
        case "503":
            text = "LLM is unavailable. Please check the server logs for more details."
            return web.Response(status=503, text=text)
        case "html":
            text = "<!DOCTYPE html><html><body><h1>Simulated gateway</h1></body></html>"
            return web.Response(text=text, content_type="text/html")
        case "wrapped_400":
            detail = (
                f"Internal server error 400, message='Bad Request', url='http://localhost:1{path}'"
            )
            return json_response(500, encode({"detail": detail}))
        case _:
            assert_never(kind)


def bad_answer(kind: BadAnswer, asked: Asked, number: int, sound: Sequence[Generated]) -> bytes:
    """Return a body that comes with status 200 and contains no text."""
    match kind:
        case "empty_choices":
            return whole(asked, number, [])
        case "null_content":
            return whole(asked, number, [Generated(None, None) for _ in sound])
        case "bad_json":
            body = whole(asked, number, sound)
            return body[: len(body) // 2]
        case _:
            assert_never(kind)
