"""The OpenAI-compatible HTTP layer that servers of ours share: requests understood, answers and errors written.

Forms follow trtllm-serve, and OpenAI for an unknown model. What is answered comes from elsewhere.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web

from serve_eval.prompt_hash import prompt_sha256
from serve_eval.schema import Message, Prompt

DEFAULT_MAX_TOKENS = 16
IMAGE_TOKENS = 64
"""Tokens that an image of a prompt stands for."""
KEEPALIVE_S = 5.0
"""Idle time after which a connection is closed, as trtllm-serve does."""
SHUTDOWN_S = 0.2
"""How long requests in progress may take when the server ends."""


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


@asynccontextmanager
async def serve_app(app: web.Application, *, port: int = 0) -> AsyncIterator[str]:
    """Serves on a socket of 127.0.0.1 (`port` 0: any free one) and yields the base URL `http://127.0.0.1:PORT/v1`.

    Raises OSError when the port is taken.
    """
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


class _StreamOptions(msgspec.Struct):
    include_usage: bool = True


class _Body(msgspec.Struct):
    """The fields of a request that change the answer."""

    model: str
    prompt: str | list[str | int | list[int]] | None = None
    messages: tuple[Message, ...] | None = None
    echo: bool = False
    logprobs: int | bool | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: float | None = None
    seed: int | None = None


class Ask(NamedTuple):
    """A request that was found valid."""

    chat: bool
    model: str
    hashes: list[str]
    prompt_tokens: int
    max_tokens: int
    stop: Sequence[str]
    stream: bool
    include_usage: bool
    prompts: Sequence[Prompt]
    echo: bool
    logprobs: bool
    prompt_logprobs: bool
    truncate: int | None
    response_format: dict[str, Any] | None
    tools: Sequence[dict[str, Any]]
    """Those that may be called."""
    temperature: float
    seed: int


class Call(NamedTuple):
    """A call of a tool, its arguments as JSON."""

    name: str
    arguments: str


class Generated(NamedTuple):
    """The answer to one prompt."""

    text: str | None
    finish_reason: str | None
    stop_reason: str | None = None
    tokens_per_step: float | None = None
    calls: Sequence[Call] = ()


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Body).decode
_WORD = re.compile(r"\s*\S+")
_PIECE = re.compile(r"\s*\S+|\s+")


def understand(raw: bytes, *, chat: bool, model: str | None, context_tokens: int | None, tools: bool = True) -> Ask:
    """The request in a body. `model` None: any name is taken; `context_tokens` None: no limit; without `tools` those
    that a request offers are not looked at.

    Raises Refused in the forms of trtllm-serve, and in OpenAI's for an unknown model.
    """
    try:
        body = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(400, {"error": str(error)}) from error
    if model is not None and body.model != model:
        raise Refused(404, openai_error(f"The model `{body.model}` does not exist.", "model_not_found", "model"))
    prompts = _prompts(body, chat)
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if max_tokens is None:
        max_tokens = DEFAULT_MAX_TOKENS
    if max_tokens < 1:
        raise bad_request(f"`max_tokens` ({max_tokens}) must be greater than 0")
    if body.n != 1:
        raise bad_request("only n = 1 is served")
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when stream is true.")
    offered = body.tools if tools and chat and body.tools and body.tool_choice != "none" else []
    shown = len(encode(offered).split(b",")) if offered else 0
    lengths = [_prompt_tokens(prompt, body.truncate_prompt_tokens) + shown for prompt in prompts]
    needed = max(lengths) + max_tokens
    if context_tokens is not None and needed > context_tokens:
        raise bad_request(
            f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
            f"{needed} tokens. Please reduce the length of the messages."
        )
    return Ask(
        chat=chat,
        model=body.model,
        hashes=[prompt_sha256(prompt) for prompt in prompts],
        prompt_tokens=sum(lengths),
        max_tokens=max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else body.stop or (),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        prompts=prompts,
        echo=body.echo,
        logprobs=bool(body.logprobs),
        prompt_logprobs=body.prompt_logprobs is not None,
        truncate=body.truncate_prompt_tokens,
        response_format=body.response_format,
        tools=offered,
        temperature=body.temperature or 0.0,
        seed=body.seed or 0,
    )


def refuse_unknown_fields(body: dict[str, object], *, chat: bool) -> None:
    """Raises Refused, as a server does whose request models forbid what they do not know."""
    if unknown := set(body) - (_CHAT_FIELDS if chat else _TEXT_FIELDS):
        message = "Extra inputs are not permitted"
        errors = [{"type": "extra_forbidden", "loc": ("body", name), "msg": message} for name in sorted(unknown)]
        raise Refused(400, {"error": str(errors)})


def limited(generated: Generated, ask: Ask) -> Generated:
    """What is left of a text at `max_tokens` words and before the first stop string."""
    text, finish_reason, *_ = generated
    assert text is not None
    if len(text) > ask.max_tokens and len(text.split()) > ask.max_tokens:
        text, finish_reason = first_words(text, ask.max_tokens), "length"
    ends = [(end, stop) for stop in ask.stop if stop and (end := text.find(stop)) >= 0]
    if ends:
        end, stop = min(ends)
        return Generated(text[:end], "stop", stop)
    return Generated(text, finish_reason)


def _prompts(body: _Body, chat: bool) -> Sequence[Prompt]:
    if chat:
        if body.messages is None:
            raise Refused(400, {"error": "Object missing required field `messages`"})
        if not body.messages:
            raise bad_request("list index out of range")
        return [body.messages]
    if body.prompt is None:
        raise Refused(400, {"error": "Object missing required field `prompt`"})
    if isinstance(body.prompt, str):
        return [body.prompt]
    if not body.prompt:
        raise bad_request("list index out of range")
    texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
    if len(texts) < len(body.prompt):
        raise bad_request("prompts of token ids are not simulated")
    return texts


def _prompt_tokens(prompt: Prompt, truncate: int | None) -> int:
    texts = [prompt] if isinstance(prompt, str) else [turn.text for turn in prompt]
    images = 0 if isinstance(prompt, str) else sum(len(turn.images) for turn in prompt)
    words = sum(len(text.split()) for text in texts) + IMAGE_TOKENS * images
    return words if truncate is None else min(words, truncate)


def first_words(text: str, count: int) -> str:
    """The text up to the end of its `count`-th word."""
    end = 0
    for word in itertools.islice(_WORD.finditer(text), count):
        end = word.end()
    return text[:end]


# ------------------------------------------------------------------------------------------------ what is answered


def json_response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def trtllm_error(message: str, kind: str, status: int) -> dict[str, object]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def openai_error(message: str, code: str, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def bad_request(message: str) -> Refused:
    return Refused(400, trtllm_error(message, "BadRequestError", 400))


def _head(ask: Ask, number: int, *, chunk: bool) -> dict[str, object]:
    kind = "text_completion" if not ask.chat else "chat.completion.chunk" if chunk else "chat.completion"
    prefix = "chatcmpl" if ask.chat else "cmpl"
    return {"id": f"{prefix}-{number:032x}", "object": kind, "created": int(time.time()), "model": ask.model}


def _usage(ask: Ask, generated: Sequence[Generated]) -> dict[str, object]:
    said = [text for g in generated for text in (g.text, *(call.arguments for call in g.calls))]
    completion = sum(len(text.split()) for text in said if text)
    prompt = ask.prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def answer_body(ask: Ask, number: int, generated: Sequence[Generated]) -> bytes:
    """A whole answer, as JSON."""
    choices = []
    for index, (text, finish_reason, stop_reason, tokens_per_step, calls) in enumerate(generated):
        if ask.echo and not ask.chat and text is not None:
            text = f"{ask.prompts[index]}{text}"
        said: dict[str, object] = {"text": text, "token_ids": None, "context_logits": None}
        if ask.chat:
            told = [_told(number, place, call) for place, call in enumerate(calls)]
            said = {"message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": told}}
        ending: dict[str, object] = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": stop_reason}
        if tokens_per_step is not None:
            ending["avg_decoded_tokens_per_iter"] = tokens_per_step
        choices.append({"index": index, **said, **ending, "disaggregated_params": None})
    head = _head(ask, number, chunk=False)
    return encode({**head, "choices": choices, "usage": _usage(ask, generated), "prompt_token_ids": None})


def answer_events(ask: Ask, number: int, generated: Sequence[Generated], *, finish: bool = True) -> Iterator[bytes]:
    """The answer as server-sent events, a word each."""
    head = _head(ask, number, chunk=True)

    def event(index: int, said: str | dict[str, Any], end: Generated | None = None) -> bytes:
        choice: dict[str, object] = {"index": index, "delta" if ask.chat else "text": said, "logprobs": None}
        choice |= {"finish_reason": end and end.finish_reason, "stop_reason": end and end.stop_reason}
        if end is not None and end.tokens_per_step is not None:
            choice["avg_decoded_tokens_per_iter"] = end.tokens_per_step
        return b"data: " + encode({**head, "choices": [choice], "usage": None}) + b"\n\n"

    for index, one in enumerate(generated):
        if ask.chat:
            # trtllm-serve writes a blank before the end of this event
            yield event(index, {"role": "assistant"})[:-2] + b" \n\n"
        for piece in _PIECE.findall(one.text or ""):
            yield event(index, {"content": piece} if ask.chat else piece)
        for place, call in enumerate(one.calls):
            yield event(index, {"tool_calls": [{"index": place, **_told(number, place, call._replace(arguments=""))}]})
            for piece in _PIECE.findall(call.arguments):
                yield event(index, {"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
        if finish:
            yield event(index, {} if ask.chat else "", one)
    if ask.include_usage:
        yield b"data: " + encode({**head, "choices": [], "usage": _usage(ask, generated)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _told(number: int, place: int, call: Call) -> dict[str, object]:
    return {"id": f"call-{number}-{place}", "type": "function", "function": call._asdict()}


async def send_stream(request: web.Request, events: Iterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response
