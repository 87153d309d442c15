"""A simulated OpenAI-compatible endpoint on a loopback socket: a real HTTP server in front of a file of answers.

    python -m launchers._simulator --config '{"answers": "answers.jsonl"}' --port-file FILE

Faults are switched on in the configuration and hit the same prompts in every run with the same seed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiohttp import web

from launchers._answers import Model, count_tokens, cut, read_answers, uniform
from serve_eval.prompt_hash import prompt_sha256
from serve_eval.schema import Message, Prompt

FailureKind = Literal[
    "500",
    "wrapped_400",
    "429",
    "503",
    "disconnect",
    "html",
    "empty_choices",
    "null_content",
    "bad_json",
    "hang",
    "stream_without_finish",
]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated. Rates are shares of the prompts, chosen by their hash.

    `failures_per_prompt` 0: a chosen prompt always fails; else only so often. `latency_s` is the time before an answer.
    `context_tokens` limits prompt words plus max_tokens. `list_models` false: no /v1/models, like an orchestrator.
    `check_model` false: any model name is taken, like trtllm-serve. `refused_fields` are answered with 400.
    """

    answers: str
    model: str = "simulated"
    seed: int = 0
    run: int = 0
    damage: float = 0.0
    latency_s: float = 0.0
    failure_rate: float = 0.0
    failure_kind: FailureKind = "500"
    failures_per_prompt: int = 0
    truncate_rate: float = 0.0
    empty_rate: float = 0.0
    context_tokens: int | None = None
    list_models: bool = True
    check_model: bool = True
    refused_fields: tuple[str, ...] = ()
    api_key: str | None = None


@dataclass(slots=True)
class Seen:
    """What a running simulator has seen, for tests: requests per prompt hash, most at a time, bodies and headers."""

    prompts: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most_in_flight: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


SEEN: web.AppKey[Seen] = web.AppKey("seen", Seen)


class _Refusal(Exception):
    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status)
        self.status, self.body = status, body


def _bad_request(message: str) -> _Refusal:
    """A worker's error body of trtllm-serve."""
    return _Refusal(400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400})


def _json(value: object, status: int = 200, **headers: str) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=headers or None
    )


class _Simulator:
    def __init__(self, config: Config, *, record: bool) -> None:
        self.config, self.record, self.seen = config, record, Seen()
        self.model = Model(
            answers=read_answers(Path(config.answers)), seed=config.seed, run=config.run, damage=config.damage
        )

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": "simulator"})

    async def models(self, request: web.Request) -> web.Response:
        entry = {"id": self.config.model, "object": "model", "created": 0, "owned_by": "simulator"}
        return _json({"object": "list", "data": [entry]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        seen = self.seen
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            return await self._generate(request)
        except _Refusal as refusal:
            return _json(refusal.body, refusal.status)
        finally:
            seen.in_flight -= 1

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        config = self.config
        if config.api_key and request.headers.get("Authorization") != f"Bearer {config.api_key}":
            told = request.headers.get("Authorization", "nothing")
            raise _Refusal(
                401, {"error": {"message": f"Incorrect API key provided: {told}", "code": "invalid_api_key"}}
            )
        try:
            body = msgspec.json.decode(await request.read(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise _Refusal(400, {"error": str(error)}) from error
        if self.record:
            self.seen.bodies.append(body)
            self.seen.headers.append(dict(request.headers))
        prompt = self._check(body, chat=request.path.endswith("/chat/completions"))
        sha256 = prompt_sha256(prompt)
        self.seen.prompts[sha256] += 1
        if config.latency_s:
            await asyncio.sleep(config.latency_s)
        if uniform("fail", config.seed, sha256) < config.failure_rate and (
            not config.failures_per_prompt or self.seen.prompts[sha256] <= config.failures_per_prompt
        ):
            return await _fail(config.failure_kind, request)
        return await self._answer(request, body, prompt, sha256)

    def _check(self, body: dict[str, Any], *, chat: bool) -> Prompt:
        """The prompt of a valid request. Raises _Refusal as the real servers do."""
        config = self.config
        for name in config.refused_fields:
            if name in body:
                raise _Refusal(400, {"error": f"[{{'type': 'extra_forbidden', 'loc': ('body', '{name}')}}]"})
        model = body.get("model")
        if config.check_model and model != config.model:
            message = f"The model `{model}` does not exist or you do not have access to it."
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "model_not_found"}
            raise _Refusal(404, {"error": error})
        max_tokens = body.setdefault("max_tokens", 16)
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise _bad_request(f"`max_tokens` ({max_tokens}) must be greater than 0")
        if body.get("n", 1) != 1:
            raise _bad_request("only n = 1 is simulated")
        prompt = _messages(body) if chat else body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not prompt or not isinstance(prompt, (str, tuple)):
            raise _bad_request("expected one prompt as a string, or a list of messages")
        if config.context_tokens is not None:
            used = _words(prompt) + max_tokens
            if used > config.context_tokens:
                limit = f"This model's maximum context length is {config.context_tokens} tokens"
                raise _bad_request(f"{limit}. However, your request needs {used} tokens.")
        return prompt

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompt: Prompt, sha256: str
    ) -> web.StreamResponse:
        config = self.config
        stop = body.get("stop") or []
        whole = self.model.answer(sha256)
        text, finish = cut(whole, body["max_tokens"], [stop] if isinstance(stop, str) else list(stop))
        if uniform("truncate", config.seed, sha256) < config.truncate_rate:
            text, finish = cut(text, max(1, count_tokens(text) // 2), [])[0], "length"
        if uniform("empty", config.seed, sha256) < config.empty_rate:
            text, finish = "", "stop"
        used = {"prompt_tokens": _words(prompt), "completion_tokens": count_tokens(text)}
        usage = {**used, "total_tokens": sum(used.values())}
        chat = not isinstance(prompt, str)
        head = {"id": f"sim-{sha256[:16]}", "created": 0, "model": body.get("model")}
        if body.get("stream"):
            include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return await _stream(request, head, chat, text, finish, usage if include_usage else None)
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        kind = "chat.completion" if chat else "text_completion"
        return _json({**head, "object": kind, "choices": [choice], "usage": usage})


def _messages(body: dict[str, Any]) -> Prompt | None:
    try:
        return tuple(Message(role=turn["role"], content=turn["content"]) for turn in body["messages"])
    except (KeyError, TypeError):
        return None


def _words(prompt: Prompt) -> int:
    return count_tokens(prompt) if isinstance(prompt, str) else sum(count_tokens(turn.content) for turn in prompt)


async def _stream(
    request: web.Request, head: dict[str, Any], chat: bool, text: str, finish: str, usage: dict[str, int] | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    kind = "chat.completion.chunk" if chat else "text_completion"

    async def send(choices: list[dict[str, Any]], **more: object) -> None:
        event = {**head, "object": kind, "choices": choices, **more}
        await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")

    if chat:
        await send([{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}])
    for start in range(0, len(text), 8):
        piece = text[start : start + 8]
        await send(
            [{"index": 0, **({"delta": {"content": piece}} if chat else {"text": piece}), "finish_reason": None}]
        )
    await send([{"index": 0, **({"delta": {}} if chat else {"text": ""}), "finish_reason": finish}])
    if usage is not None:
        await send([], usage=usage)
    await response.write(b"data: [DONE]\n\n")
    return response


async def _fail(kind: FailureKind, request: web.Request) -> web.StreamResponse:
    wrapped = "Internal server error 400, message='Bad Request', url='http://localhost:8001/v1/completions'"
    match kind:
        case "500":
            return _json({"detail": "Internal server error simulated"}, 500)
        case "wrapped_400":
            return _json({"detail": wrapped}, 500)
        case "429":
            return _json({"error": {"message": "slow down"}}, 429, **{"Retry-After": "0"})
        case "503":
            return web.Response(status=503, text="LLM is unavailable.")
        case "html":
            page = "<html><head><title>Welcome</title></head><body>hello</body></html>"
            return web.Response(text=page, content_type="text/html")
        case "empty_choices":
            return _json({"object": "text_completion", "choices": []})
        case "null_content":
            choice = {"index": 0, "text": None, "message": {"content": None}, "finish_reason": None}
            return _json({"choices": [choice]})
        case "bad_json":
            return web.Response(body=b'{"choices": [{"text": "half an ans', content_type="application/json")
        case "stream_without_finish":
            body = b'data: {"choices": [{"index": 0, "text": "half"}]}\n\ndata: [DONE]\n\n'
            return web.Response(body=body, content_type="text/event-stream")
        case "hang":
            await asyncio.sleep(3600)
    if request.transport is not None:
        request.transport.close()
    return web.Response()


def create_app(config: Config, *, record: bool = False) -> web.Application:
    """The application. `record` keeps every request's body and headers in `app[SEEN]`. Raises OSError and
    msgspec.DecodeError when the answer file cannot be read."""
    simulator = _Simulator(config, record=record)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app[SEEN] = simulator.seen
    app.router.add_get("/health", simulator.health)
    app.router.add_get("/version", simulator.version)
    if config.list_models:
        app.router.add_get("/v1/models", simulator.models)
    app.router.add_post("/v1/completions", simulator.generate)
    app.router.add_post("/v1/chat/completions", simulator.generate)
    return app


@asynccontextmanager
async def serve(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serves an application on 127.0.0.1 and yields its base URL. Port 0: any free one."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=8192)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def _main(config: Config, port_file: Path) -> None:
    """Serves until SIGTERM, or until standard input ends because the process that started us is gone."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)

    def end_with_parent() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            ended.set()

    loop.add_reader(sys.stdin.fileno(), end_with_parent)
    async with serve(create_app(config)) as base_url:
        partial = port_file.with_suffix(".partial")
        partial.write_text(base_url, encoding="utf-8")
        partial.replace(port_file)
        await ended.wait()


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description="The simulated endpoint of serve-eval.")
    parser.add_argument("--config", required=True, help="configuration as JSON")
    parser.add_argument("--port-file", required=True, type=Path, help="file that the base URL is written to")
    arguments = parser.parse_args()
    asyncio.run(_main(msgspec.json.decode(arguments.config, type=Config), arguments.port_file))
