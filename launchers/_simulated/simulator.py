"""The simulated endpoint: an OpenAI-compatible server that looks answers up in a file. There is no model in it.

    python -m launchers._simulated.simulator --answers FILE [--model NAME] [--port 0] [--ready-file FILE] [FAULTS]

The answer file has one JSON object per line: `sha256` of the prompt (`serve_eval.schema.prompt_hash`), the texts
`right` and `wrong`, and the `probability` of the right one. A token is a word with the white space before it.

Chance is decided by hashes. A prompt is answered right where a uniform number of (seed, run, prompt) lies below its
probability times (1 - damage), so more damage only ever adds wrong answers. Which prompts fail, are cut or come back
empty depends on (seed, prompt), the jitter of the latency on (seed, number of the request).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec
from aiohttp import web

from launchers._http.answers import Events, Generated, Usage, answer_body
from launchers._http.requests import (
    DEFAULT_MAX_TOKENS,
    Ask,
    refuse_too_few,
    refuse_too_long,
    refuse_unknown_fields,
    understand,
)
from launchers._http.server import (
    Refused,
    bad_request,
    encode,
    json_response,
    openai_error,
    send_stream,
    serve_app,
    trtllm_error,
)
from launchers._process.own_server import serve_until_ended
from launchers._simulated import guided, tools, words
from launchers._simulated import prompt_logprobs as logprobs_of_prompts
from launchers._simulated.faults import COUNTS, SHARES, Fault, out_of_range
from serve_eval.schema import Prompt
from serve_eval.schema.prompt_hash import prompt_sha256, uniform

UNKNOWN_ANSWER = "I do not know."
SAMPLED_ANSWERS = (
    UNKNOWN_ANSWER,
    "I cannot tell.",
    "That is unknown to me.",
    "Nobody told me that.",
    "I have no answer to this.",
)
"""What is said to a prompt that the answer file does not know: the first, or where it is asked with a temperature, one
that the request's seed decides."""
MAX_BODY_BYTES = 64 * 1024 * 1024
RECORDED = 1000
"""Requests of which bodies and headers are kept with `record`: the latest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig:
    """What the server knows and how it misbehaves. Rates and `damage` are in [0, 1], times in seconds.

    `failure_rate` is the share of the prompts whose requests fail as `failure_kind` says, `failures_per_prompt` times
    each (0: always). Prompts that the answer file does not know fail only at a rate of 1, so that a client's first
    trial can pass. `truncate_rate` is the share of the answers that lose half their words, `empty_rate` of those that
    are "". With `varied` a prompt that is asked again is decided anew. `crash_after` ends the process at the first
    request after so many, so it is for a process of its own.
    `context_tokens` bounds prompt and `max_tokens` together. `any_model` accepts every model name, as trtllm-serve
    does; `strict_fields` refuses what it does not know; `no_models` has no /v1/models, like its orchestrator.
    `no_chat` and `no_completions` lack that route, `no_images` refuses images, and `no_guided` and `no_tools` ignore
    response_format and tools; without them, prompts that the answer file does not know are answered by what fits the
    schema, and by a call of the first tool.
    `prompt_logprobs` is the form in which log-probabilities of prompts are given; an answer that is a number is that
    of every token. `begins_with` is the mark that begins texts, which the server tells as `tells_beginning` says, and
    with `puts_beginning` puts before each prompt itself. `tokens_per_step` is what each answer reports of speculative
    decoding. `api_key` must come as a bearer token when set. `record` keeps the latest bodies and headers in `Stats`.
    Raises ValueError for values out of range.
    """

    answers: Path | None = None
    model: str = "simulated"
    seed: int = 0
    run: int = 0
    varied: bool = False
    damage: float = 0.0
    latency_s: float = 0.0
    latency_jitter_s: float = 0.0
    failure_rate: float = 0.0
    failure_kind: Fault = "500"
    failures_per_prompt: int = 0
    truncate_rate: float = 0.0
    empty_rate: float = 0.0
    crash_after: int | None = None
    context_tokens: int | None = None
    any_model: bool = False
    strict_fields: bool = False
    no_models: bool = False
    no_chat: bool = False
    no_completions: bool = False
    no_images: bool = False
    no_guided: bool = False
    no_tools: bool = False
    prompt_logprobs: logprobs_of_prompts.Form = "none"
    begins_with: str = ""
    tells_beginning: logprobs_of_prompts.Telling = "none"
    puts_beginning: bool = False
    tokens_per_step: float | None = None
    api_key: str | None = field(default=None, repr=False)
    record: bool = False

    def __post_init__(self) -> None:
        for name, message in out_of_range({name: getattr(self, name) for name in (*SHARES, *COUNTS)}):
            raise ValueError(f"{name} {message}")


@dataclass(slots=True)
class Stats:
    """What the server has seen, for tests in the same process: completion requests by prompt hash, the most that were
    in progress at once, and with `record` the latest bodies and headers."""

    requests: Counter[str] = field(default_factory=Counter)
    concurrent: int = 0
    max_concurrent: int = 0
    bodies: deque[Any] = field(default_factory=lambda: deque(maxlen=RECORDED))
    headers: deque[Mapping[str, str]] = field(default_factory=lambda: deque(maxlen=RECORDED))


STATS = web.AppKey("stats", Stats)
"""Key of the Stats of an application."""


def create_app(config: SimulatorConfig) -> web.Application:
    """The server as an aiohttp application. Raises OSError or msgspec.MsgspecError for a bad answer file."""
    simulator = _Simulator(config)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app[STATS] = simulator.stats
    if not config.no_completions:
        app.router.add_post("/v1/completions", simulator.completions)
    if not config.no_chat:
        app.router.add_post("/v1/chat/completions", simulator.chat_completions)
    app.router.add_get("/health", _health)
    app.router.add_get("/version", _version)
    told = encode({"bos_token": config.begins_with or None, "eos_token": {"content": "<end>"}})
    routes: dict[str, str] = {"vllm": "/tokenizer_info", "llama_cpp": "/props"}
    if config.tells_beginning in routes:
        app.router.add_get(routes[config.tells_beginning], partial(_told, told))
    if not config.no_models:
        app.router.add_get("/v1/models", simulator.models)
    return app


def serve(simulator: SimulatorConfig | web.Application, *, port: int = 0) -> AbstractAsyncContextManager[str]:
    """Serves on a socket of 127.0.0.1 (`port` 0: any free one) and yields the base URL `http://127.0.0.1:PORT/v1`.

    Raises OSError when the port is taken.
    """
    return serve_app(simulator if isinstance(simulator, web.Application) else create_app(simulator), port=port)


class _Entry(msgspec.Struct):
    """A line of the answer file."""

    sha256: str
    right: str
    wrong: str
    probability: float


class _Simulator:
    """Chance is drawn once, when the answer file is read; a request then only looks up."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config, self.stats = config, Stats()
        self._beginning = logprobs_of_prompts.Beginning(mark=config.begins_with, puts=config.puts_beginning)
        self._answers: dict[str, Generated] = {}
        self._entries: dict[str, _Entry] = {}
        self._drawn: Counter[str] = Counter()
        self._failing: set[str] = set()
        self._received = 0
        lines = config.answers.read_bytes() if config.answers else b""
        for entry in msgspec.json.Decoder(_Entry).decode_lines(lines):
            self._answers[entry.sha256] = self._draw(entry)
            if config.varied:
                self._entries[entry.sha256] = entry
            if uniform(f"{config.seed}:fail:{entry.sha256}") < config.failure_rate:
                self._failing.add(entry.sha256)
        models = {"id": config.model, "object": "model", "created": int(time.time()), "owned_by": "simulated"}
        self._models = encode({"object": "list", "data": [models]})

    def _draw(self, entry: _Entry, again: int = 0) -> Generated:
        config, key = self.config, entry.sha256
        drawn = f"{config.seed}:{config.run}:{key}" + (f":{again}" if again else "")
        right = uniform(drawn) < entry.probability * (1.0 - config.damage)
        text = entry.right if right else entry.wrong
        if uniform(f"{config.seed}:empty:{key}") < config.empty_rate:
            return Generated("", "stop")
        if uniform(f"{config.seed}:truncate:{key}") < config.truncate_rate:
            return Generated(words.first(text, max(1, len(text.split()) // 2)), "length")
        return Generated(text, "stop")

    async def models(self, request: web.Request) -> web.Response:
        if refused := self._unauthorized(request):
            return refused
        return json_response(200, self._models)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        key = self.config.api_key
        if key is None or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return json_response(401, encode(openai_error("Incorrect API key provided.", "invalid_api_key")))

    async def _receive(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if refused := self._unauthorized(request):
            return refused
        stats = self.stats
        self._received += 1
        if self.config.crash_after is not None and self._received > self.config.crash_after:
            sys.stderr.write(f"crashing after {self.config.crash_after} requests, as told\n")
            sys.stderr.flush()
            os._exit(1)
        number = self._received
        stats.concurrent += 1
        stats.max_concurrent = max(stats.max_concurrent, stats.concurrent)
        try:
            asked = self._understand(await request.read(), request.headers, chat)
            await self._wait(number)
            if self._fails(asked):
                return await self._fail(request, asked, number)
            generated = self._generate(asked)
            if asked.ask.stream:
                return await send_stream(request, _events(asked, number, generated))
            return json_response(200, _whole(asked, number, generated))
        except Refused as error:
            return json_response(error.status, encode(error.body))
        finally:
            stats.concurrent -= 1

    def _understand(self, raw: bytes, headers: Mapping[str, str], chat: bool) -> _Asked:
        """Raises Refused, as `understand` does."""
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
        max_tokens = DEFAULT_MAX_TOKENS if ask.max_tokens is None else ask.max_tokens
        refuse_too_few(max_tokens)
        shown = len(encode(ask.tools).split(b",")) if ask.tools else 0
        lengths = [self._length(prompt, ask.truncate) + shown for prompt in prompts]
        refuse_too_long(max(lengths) + max_tokens, config.context_tokens)
        if config.no_images and any(
            turn.images for prompt in prompts if not isinstance(prompt, str) for turn in prompt
        ):
            raise bad_request("simulated is not a multimodal model")
        asked = _Asked(ask, prompts, [prompt_sha256(prompt) for prompt in prompts], max_tokens, sum(lengths))
        self.stats.requests.update(asked.hashes)
        return asked

    def _length(self, prompt: Prompt, truncate: int | None) -> int:
        marks, rest = self._beginning.rest(prompt) if isinstance(prompt, str) else ([], prompt)
        length = len(marks) + words.of_prompt(rest, None)
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
            jitter = config.latency_jitter_s and config.latency_jitter_s * uniform(f"{config.seed}:latency:{number}")
            await asyncio.sleep(config.latency_s + jitter)

    def _fails(self, asked: _Asked) -> bool:
        """Whether this request fails; called once per request, after it was counted."""
        config = self.config
        if not config.failure_rate:
            return False
        chosen = [key for key in asked.hashes if config.failure_rate >= 1.0 or key in self._failing]
        return any(not config.failures_per_prompt or self._due(key) for key in chosen)

    def _due(self, key: str) -> bool:
        return self.stats.requests[key] <= self.config.failures_per_prompt

    def _generate(self, asked: _Asked) -> list[Generated]:
        steps, found = self.config.tokens_per_step, []
        told = logprobs_of_prompts.told(asked.ask, self.config.prompt_logprobs)
        for key, prompt in zip(asked.hashes, asked.prompts, strict=True):
            one = words.limited(self._known(key, asked.ask), 1 if told else asked.max_tokens, asked.ask.stop)
            if isinstance(prompt, str):
                one = one._replace(prompt_text=prompt)
                if told:
                    form = self.config.prompt_logprobs
                    one = logprobs_of_prompts.with_prompt(one, asked.ask.truncate, form, self._beginning)
            one = tools.told(one, asked.ask)
            found.append(one if steps is None else one._replace(tokens_per_step=steps))
        return found

    def _known(self, key: str, ask: Ask) -> Generated:
        if key in self._entries:
            again = self._drawn[key]
            self._drawn[key] += 1
            return self._draw(self._entries[key], again)
        known = self._answers.get(key)
        if known is None and ask.response_format and not self.config.no_guided:
            schema = guided.schema_of(ask.response_format)
            known = None if schema is None else Generated(guided.fitting(schema), "stop")
        if known is None and ask.tools:
            known = Generated(tools.fitting(ask.tools), "stop")
        if known is None:
            draw = int(len(SAMPLED_ANSWERS) * uniform(f"{ask.seed or 0}:{key}")) if ask.temperature else 0
            known = Generated(SAMPLED_ANSWERS[draw], "stop")
        return known

    async def _fail(self, request: web.Request, asked: _Asked, number: int) -> web.StreamResponse:
        sound = self._generate(asked)
        match self.config.failure_kind:
            case "500":
                return json_response(500, encode({"detail": "Internal server error simulated failure"}))
            case "429":
                body = trtllm_error("Simulated overload", "TooManyRequests", 429)
                return json_response(429, encode(body), {"Retry-After": "0"})
            case "503":
                text = "LLM is unavailable. Please check the server logs for more details."
                return web.Response(status=503, text=text)
            case "disconnect":
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            case "html":
                text = "<!DOCTYPE html><html><body><h1>Simulated gateway</h1></body></html>"
                return web.Response(text=text, content_type="text/html")
            case "empty_choices":
                return json_response(200, _whole(asked, number, []))
            case "null_content":
                return json_response(200, _whole(asked, number, [Generated(None, None) for _ in sound]))
            case "bad_json":
                whole = _whole(asked, number, sound)
                return json_response(200, whole[: len(whole) // 2])
            case "hang":
                await asyncio.Event().wait()
                return web.Response()
            case "wrapped_400":
                detail = f"Internal server error 400, message='Bad Request', url='http://localhost:1{request.path}'"
                return json_response(500, encode({"detail": detail}))
            case "stream_without_finish":
                return await send_stream(request, _events(asked, number, sound, finish=False))


class _Asked(NamedTuple):
    """A request that can be answered, with what its words say."""

    ask: Ask
    prompts: Sequence[Prompt]
    hashes: Sequence[str]
    max_tokens: int
    prompt_tokens: int

    def usage(self, generated: Sequence[Generated]) -> Usage:
        said = [text for one in generated for text in (one.text, *(call.arguments for call in one.calls))]
        return Usage(self.prompt_tokens, sum(len(text.split()) for text in said if text))


def _whole(asked: _Asked, number: int, generated: Sequence[Generated]) -> bytes:
    return answer_body(asked.ask, number, generated, asked.usage(generated))


async def _events(
    asked: _Asked, number: int, generated: Sequence[Generated], *, finish: bool = True
) -> AsyncIterator[bytes]:
    """The answer as server-sent events, a word each."""
    events = Events(asked.ask, number)
    for index, one in enumerate(generated):
        for event in events.opening(index, one):
            yield event
        for piece in words.pieces(one.text or ""):
            yield events.piece(index, piece)
        for place, call in enumerate(one.calls):
            for event in events.call(index, place, call, words.pieces(call.arguments)):
                yield event
        if finish:
            yield events.end(index, one)
    for event in events.closing(asked.usage(generated)):
        yield event


async def _told(body: bytes, request: web.Request) -> web.Response:
    return json_response(200, body)


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return json_response(200, b'{"version":"simulator"}')


# ---------------------------------------------------------------------------------------------- as its own process

_IN_PROCESS_ONLY = ("api_key", "record")
"""A key does not belong on a command line, and what is recorded could not be read."""


def _parse(arguments: Sequence[str] | None) -> tuple[SimulatorConfig, int, Path | None]:
    """The command line: an option for every field of SimulatorConfig that makes sense there."""
    parser = argparse.ArgumentParser(
        prog="python -m launchers._simulated.simulator",
        description="A simulated OpenAI-compatible endpoint on 127.0.0.1. There is no model in it.",
        usage="%(prog)s [--answers FILE] [options]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ready-file", type=Path, default=None, help="gets the base URL once it can be used")
    hints = get_type_hints(SimulatorConfig)
    for one in fields(SimulatorConfig):
        flag = f"--{one.name.replace('_', '-')}"
        if one.name not in _IN_PROCESS_ONLY:
            parser.add_argument(flag, action="store_true" if hints[one.name] is bool else "store")
    given = vars(parser.parse_args(arguments))
    port, ready_file = given.pop("port"), given.pop("ready_file")
    try:
        config = msgspec.convert(given, SimulatorConfig, strict=False, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        parser.error(str(error))
    return config, port, ready_file


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the server as its own process."""
    config, port, ready_file = _parse(arguments)
    os.umask(0o077)  # what is written belongs to a run folder
    asyncio.run(serve_until_ended(serve(config, port=port), "simulated endpoint", ready_file))


if __name__ == "__main__":
    main()
