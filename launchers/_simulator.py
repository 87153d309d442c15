"""The simulated endpoint: an OpenAI-compatible server that looks answers up in a file. There is no model in it.

    python -m launchers._simulator --answers FILE [--model NAME] [--port 0] [--ready-file FILE] [FAULTS]

The answer file has one JSON object per line: `sha256` of the prompt (`serve_eval.prompt_hash`), the texts `right` and
`wrong`, and the `probability` of the right one. A token is a word with the white space before it.

Chance is decided by hashes. A prompt is answered right where a uniform number of (seed, run, prompt) lies below its
probability times (1 - damage), so more damage only ever adds wrong answers. Which prompts fail, are cut or come back
empty depends on (seed, prompt), the jitter of the latency on (seed, number of the request).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import signal
import stat
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from aiohttp import web

from serve_eval.prompt_hash import prompt_sha256, uniform
from serve_eval.schema import Message, Prompt

UNKNOWN_ANSWER = "I do not know."
DEFAULT_MAX_TOKENS = 16
MAX_BODY_BYTES = 64 * 1024 * 1024
KEEPALIVE_S = 5.0
"""Idle time after which a connection is closed, as trtllm-serve does."""
SHUTDOWN_S = 0.2
"""How long requests in progress may take when the server ends."""
RECORDED = 1000
"""Requests of which bodies and headers are kept with `record`: the latest ones."""

Fault = Literal[
    "500",
    "429",
    "503",
    "disconnect",
    "html",
    "empty_choices",
    "null_content",
    "bad_json",
    "hang",
    "wrapped_400",
    "stream_without_finish",
]
"""How a request fails: a status in one of trtllm-serve's forms, no answer, or a 200 that holds none.

500: `{"detail": ...}` of an orchestrator. 429: with `Retry-After: 0`. 503: plain text. disconnect: the connection is
closed. html: a proxy's page. empty_choices, null_content, bad_json (cut in the middle): an answer without a text. hang:
nothing until the client goes. wrapped_400: a worker's refusal as an orchestrator's 500. stream_without_finish: an event
stream, asked for or not, that never says why it ends.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON_FIELDS = _words("""
    model best_of frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options
    temperature top_p user echo lora_request prompt_ignore_length use_beam_search top_k top_p_min min_p
    repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens add_special_tokens response_format
    disaggregated_params thinking_token_budget priority conversation_params
""")
_TEXT_FIELDS = _COMMON_FIELDS | _words("prompt suffix return_context_logits detokenize")
_CHAT_FIELDS = _COMMON_FIELDS | _words("""
    messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls reasoning_effort
    prompt_token_ids add_generation_prompt documents chat_template chat_template_kwargs cache_salt agent_hierarchy
    media_io_kwargs mm_processor_kwargs thinking
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig:
    """What the server knows and how it misbehaves. Rates and `damage` are in [0, 1], times in seconds.

    `failure_rate` is the share of the prompts whose requests fail as `failure_kind` says, `failures_per_prompt` times
    each (0: always). Prompts that the answer file does not know fail only at a rate of 1, so that a client's first
    trial can pass. `truncate_rate` is the share of the answers that lose half their words, `empty_rate` of those that
    are "". `crash_after` ends the process at the first request after so many, so it is for a process of its own.
    `context_tokens` bounds prompt and `max_tokens` together. `any_model` accepts every model name, as trtllm-serve
    does; `strict_fields` refuses what it does not know; `no_models` has no /v1/models, like its orchestrator.
    `api_key` must come as a bearer token when set. `record` keeps the latest bodies and headers in `Stats`.
    Raises ValueError for values out of range.
    """

    answers: Path | None = None
    model: str = "simulated"
    seed: int = 0
    run: int = 0
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
    api_key: str | None = field(default=None, repr=False)
    record: bool = False

    def __post_init__(self) -> None:
        for name in ("damage", "failure_rate", "truncate_rate", "empty_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}, which is not between 0 and 1")
        for name in ("latency_s", "latency_jitter_s", "failures_per_prompt", "crash_after", "context_tokens"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, which is negative")


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
    app.router.add_post("/v1/completions", simulator.completions)
    app.router.add_post("/v1/chat/completions", simulator.chat_completions)
    app.router.add_get("/health", _health)
    app.router.add_get("/version", _version)
    if not config.no_models:
        app.router.add_get("/v1/models", simulator.models)
    return app


@asynccontextmanager
async def serve(simulator: SimulatorConfig | web.Application, *, port: int = 0) -> AsyncIterator[str]:
    """Serves on a socket of 127.0.0.1 (`port` 0: any free one) and yields the base URL `http://127.0.0.1:PORT/v1`.

    Raises OSError when the port is taken.
    """
    app = simulator if isinstance(simulator, web.Application) else create_app(simulator)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


# -------------------------------------------------------------------------------------------------- what is asked


class _Entry(msgspec.Struct):
    """A line of the answer file."""

    sha256: str
    right: str
    wrong: str
    probability: float


class _StreamOptions(msgspec.Struct):
    include_usage: bool = True


class _Body(msgspec.Struct):
    """The fields of a request that change the answer."""

    model: str
    prompt: str | list[str | int | list[int]] | None = None
    messages: tuple[Message, ...] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _Ask(NamedTuple):
    """A request that was found valid."""

    chat: bool
    model: str
    hashes: list[str]
    prompt_tokens: int
    max_tokens: int
    stop: Sequence[str]
    stream: bool
    include_usage: bool


class _Generated(NamedTuple):
    """The answer to one prompt."""

    text: str | None
    finish_reason: str | None
    stop_reason: str | None = None


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Body).decode
_WORD = re.compile(r"\s*\S+")
_PIECE = re.compile(r"\s*\S+|\s+")


class _Simulator:
    """Chance is drawn once, when the answer file is read; a request then only looks up."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config, self.stats = config, Stats()
        self._answers: dict[str, _Generated] = {}
        self._failing: set[str] = set()
        self._received = 0
        lines = config.answers.read_bytes() if config.answers else b""
        for entry in msgspec.json.Decoder(_Entry).decode_lines(lines):
            self._answers[entry.sha256] = self._draw(entry)
            if uniform(f"{config.seed}:fail:{entry.sha256}") < config.failure_rate:
                self._failing.add(entry.sha256)
        models = {"id": config.model, "object": "model", "created": int(time.time()), "owned_by": "simulated"}
        self._models = _encode({"object": "list", "data": [models]})

    def _draw(self, entry: _Entry) -> _Generated:
        config, key = self.config, entry.sha256
        right = uniform(f"{config.seed}:{config.run}:{key}") < entry.probability * (1.0 - config.damage)
        text = entry.right if right else entry.wrong
        if uniform(f"{config.seed}:empty:{key}") < config.empty_rate:
            return _Generated("", "stop")
        if uniform(f"{config.seed}:truncate:{key}") < config.truncate_rate:
            return _Generated(_first_words(text, max(1, len(text.split()) // 2)), "length")
        return _Generated(text, "stop")

    async def models(self, request: web.Request) -> web.Response:
        if refused := self._unauthorized(request):
            return refused
        return _json(200, self._models)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        key = self.config.api_key
        if key is None or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return _json(401, _encode(_openai_error("Incorrect API key provided.", "invalid_api_key")))

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
            ask = self._understand(await request.read(), request.headers, chat)
            await self._wait(number)
            if self._fails(ask):
                return await self._fail(request, ask, number)
            generated = [self._generate(key, ask) for key in ask.hashes]
            if ask.stream:
                return await _stream(request, _events(ask, number, generated))
            return _json(200, _answer(ask, number, generated))
        except _Refused as error:
            return _json(error.status, _encode(error.body))
        finally:
            stats.concurrent -= 1

    def _understand(self, raw: bytes, headers: Mapping[str, str], chat: bool) -> _Ask:
        """Raises _Refused in the forms of trtllm-serve, and in OpenAI's for an unknown model."""
        config = self.config
        try:
            body = _decode(raw)
            if config.record or config.strict_fields:
                self._look_closely(msgspec.json.decode(raw), headers, chat)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _Refused(400, {"error": str(error)}) from error
        if not config.any_model and body.model != config.model:
            raise _Refused(404, _openai_error(f"The model `{body.model}` does not exist.", "model_not_found", "model"))
        prompts = _prompts(body, chat)
        max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        if max_tokens is None:
            max_tokens = DEFAULT_MAX_TOKENS
        if max_tokens <= 0:
            raise _bad_request(f"`max_tokens` ({max_tokens}) must be greater than 0")
        if body.n != 1:
            raise _bad_request("only n = 1 is simulated")
        if body.stream_options is not None and not body.stream:
            raise _bad_request("Stream options can only be defined when stream is true.")
        lengths = [_prompt_tokens(prompt, body.truncate_prompt_tokens) for prompt in prompts]
        needed, limit = max(lengths) + max_tokens, config.context_tokens
        if limit is not None and needed > limit:
            raise _bad_request(
                f"This model's maximum context length is {limit} tokens. However, your messages resulted in {needed} "
                "tokens. Please reduce the length of the messages."
            )
        hashes = [prompt_sha256(prompt) for prompt in prompts]
        self.stats.requests.update(hashes)
        return _Ask(
            chat=chat,
            model=body.model,
            hashes=hashes,
            prompt_tokens=sum(lengths),
            max_tokens=max_tokens,
            stop=(body.stop,) if isinstance(body.stop, str) else body.stop or (),
            stream=bool(body.stream),
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
        )

    def _look_closely(self, body: Any, headers: Mapping[str, str], chat: bool) -> None:
        if self.config.record:
            self.stats.bodies.append(body)
            self.stats.headers.append(dict(headers))
        if self.config.strict_fields and (unknown := set(body) - (_CHAT_FIELDS if chat else _TEXT_FIELDS)):
            errors = [{"type": "extra_forbidden", "loc": ("body", name), "msg": _EXTRA} for name in sorted(unknown)]
            raise _Refused(400, {"error": str(errors)})

    async def _wait(self, number: int) -> None:
        config = self.config
        if config.latency_s or config.latency_jitter_s:
            jitter = config.latency_jitter_s and config.latency_jitter_s * uniform(f"{config.seed}:latency:{number}")
            await asyncio.sleep(config.latency_s + jitter)

    def _fails(self, ask: _Ask) -> bool:
        """Whether this request fails; called once per request, after it was counted."""
        config = self.config
        if not config.failure_rate:
            return False
        chosen = [key for key in ask.hashes if config.failure_rate >= 1.0 or key in self._failing]
        return any(not config.failures_per_prompt or self._due(key) for key in chosen)

    def _due(self, key: str) -> bool:
        return self.stats.requests[key] <= self.config.failures_per_prompt

    def _generate(self, key: str, ask: _Ask) -> _Generated:
        generated = self._answers.get(key, _UNKNOWN)
        text, finish_reason, _ = generated
        assert text is not None
        if len(text) > ask.max_tokens and len(text.split()) > ask.max_tokens:
            text, finish_reason = _first_words(text, ask.max_tokens), "length"
        ends = [(end, stop) for stop in ask.stop if stop and (end := text.find(stop)) >= 0]
        if ends:
            end, stop = min(ends)
            return _Generated(text[:end], "stop", stop)
        return _Generated(text, finish_reason)

    async def _fail(self, request: web.Request, ask: _Ask, number: int) -> web.StreamResponse:
        sound = [self._generate(key, ask) for key in ask.hashes]
        match self.config.failure_kind:
            case "500":
                return _json(500, _encode({"detail": "Internal server error simulated failure"}))
            case "429":
                body = _trtllm_error("Simulated overload", "TooManyRequests", 429)
                return _json(429, _encode(body), {"Retry-After": "0"})
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
                return _json(200, _answer(ask, number, []))
            case "null_content":
                return _json(200, _answer(ask, number, [_Generated(None, None) for _ in sound]))
            case "bad_json":
                whole = _answer(ask, number, sound)
                return _json(200, whole[: len(whole) // 2])
            case "hang":
                await asyncio.Event().wait()
                return web.Response()
            case "wrapped_400":
                detail = f"Internal server error 400, message='Bad Request', url='http://localhost:1{request.path}'"
                return _json(500, _encode({"detail": detail}))
            case "stream_without_finish":
                return await _stream(request, _events(ask, number, sound, finish=False))


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return _json(200, b'{"version":"simulator"}')


def _prompts(body: _Body, chat: bool) -> Sequence[Prompt]:
    if chat:
        if body.messages is None:
            raise _Refused(400, {"error": "Object missing required field `messages`"})
        if not body.messages:
            raise _bad_request("list index out of range")
        return [body.messages]
    if body.prompt is None:
        raise _Refused(400, {"error": "Object missing required field `prompt`"})
    if isinstance(body.prompt, str):
        return [body.prompt]
    if not body.prompt:
        raise _bad_request("list index out of range")
    texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
    if len(texts) < len(body.prompt):
        raise _bad_request("prompts of token ids are not simulated")
    return texts


def _prompt_tokens(prompt: Prompt, truncate: int | None) -> int:
    texts = [prompt] if isinstance(prompt, str) else [turn.content for turn in prompt]
    words = sum(len(text.split()) for text in texts)
    return words if truncate is None else min(words, truncate)


def _first_words(text: str, count: int) -> str:
    """The text up to the end of its `count`-th word."""
    end = 0
    for word in itertools.islice(_WORD.finditer(text), count):
        end = word.end()
    return text[:end]


# ------------------------------------------------------------------------------------------------ what is answered

_UNKNOWN = _Generated(UNKNOWN_ANSWER, "stop")
_EXTRA = "Extra inputs are not permitted"


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _trtllm_error(message: str, kind: str, status: int) -> dict[str, object]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def _openai_error(message: str, code: str, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def _bad_request(message: str) -> _Refused:
    return _Refused(400, _trtllm_error(message, "BadRequestError", 400))


def _head(ask: _Ask, number: int, *, chunk: bool) -> dict[str, object]:
    kind = "text_completion" if not ask.chat else "chat.completion.chunk" if chunk else "chat.completion"
    prefix = "chatcmpl" if ask.chat else "cmpl"
    return {"id": f"{prefix}-{number:032x}", "object": kind, "created": int(time.time()), "model": ask.model}


def _usage(ask: _Ask, generated: Sequence[_Generated]) -> dict[str, object]:
    completion = sum(len(g.text.split()) for g in generated if g.text)
    prompt = ask.prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _answer(ask: _Ask, number: int, generated: Sequence[_Generated]) -> bytes:
    """A whole answer, as JSON."""
    choices = []
    for index, (text, finish_reason, stop_reason) in enumerate(generated):
        said: dict[str, object] = {"text": text, "token_ids": None, "context_logits": None}
        if ask.chat:
            said = {"message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": []}}
        ending = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": stop_reason}
        choices.append({"index": index, **said, **ending, "disaggregated_params": None})
    head = _head(ask, number, chunk=False)
    return _encode({**head, "choices": choices, "usage": _usage(ask, generated), "prompt_token_ids": None})


def _events(ask: _Ask, number: int, generated: Sequence[_Generated], *, finish: bool = True) -> Iterator[bytes]:
    """The answer as server-sent events, a word each."""
    head = _head(ask, number, chunk=True)

    def event(index: int, said: str | dict[str, str], end: _Generated | None = None) -> bytes:
        choice: dict[str, object] = {"index": index, "delta" if ask.chat else "text": said, "logprobs": None}
        choice |= {"finish_reason": end and end.finish_reason, "stop_reason": end and end.stop_reason}
        return b"data: " + _encode({**head, "choices": [choice], "usage": None}) + b"\n\n"

    for index, one in enumerate(generated):
        if ask.chat:
            # trtllm-serve writes a blank before the end of this event
            yield event(index, {"role": "assistant"})[:-2] + b" \n\n"
        for piece in _PIECE.findall(one.text or ""):
            yield event(index, {"content": piece} if ask.chat else piece)
        if finish:
            yield event(index, {} if ask.chat else "", one)
    if ask.include_usage:
        yield b"data: " + _encode({**head, "choices": [], "usage": _usage(ask, generated)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def _stream(request: web.Request, events: Iterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response


# ---------------------------------------------------------------------------------------------- as its own process

_IN_PROCESS_ONLY = ("api_key", "record")
"""A key does not belong on a command line, and what is recorded could not be read."""


def _parse(arguments: Sequence[str] | None) -> tuple[SimulatorConfig, int, Path | None]:
    """The command line: an option for every field of SimulatorConfig that makes sense there."""
    parser = argparse.ArgumentParser(
        prog="python -m launchers._simulator",
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


async def _run(config: SimulatorConfig, port: int, ready_file: Path | None) -> None:
    """Serves until SIGTERM, SIGINT or the end of the process that holds the other end of stdin."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def read_stdin() -> None:
        if not os.read(0, 65536):
            loop.remove_reader(0)
            ended.set()

    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        loop.add_reader(0, read_stdin)
    async with serve(config, port=port) as base_url:
        sys.stdout.write(f"simulated endpoint at {base_url}\n")
        sys.stdout.flush()
        if ready_file is not None:
            partial = ready_file.with_name(ready_file.name + ".partial")
            partial.write_text(base_url)
            partial.replace(ready_file)
        await ended.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the server as its own process."""
    config, port, ready_file = _parse(arguments)
    asyncio.run(_run(config, port, ready_file))


if __name__ == "__main__":
    main()
