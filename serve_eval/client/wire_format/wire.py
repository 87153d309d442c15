"""Convert requests to OpenAI JSON and bodies to answers. Pure: no I/O.

Decoding is lenient about extra content and strict about the answer itself: a body without one is an
`InvalidResponse`, never an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from serve_eval.client.wire_format import fields
from serve_eval.client.wire_format.calls import ToolCalls
from serve_eval.schema import (
    CallMessage,
    Message,
    Prompt,
    PromptLogprobs,
    Request,
    ResultMessage,
    ToolCall,
    Usage,
)

COMPLETIONS = "/completions"
CHAT_COMPLETIONS = "/chat/completions"
EVENT_STREAM = "text/event-stream"
FINISHED = frozenset(
    {
        "stop",
        "length",
        "content_filter",
        "tool_calls",
        "function_call",
        "eos_token",
        "stop_sequence",
    }
)
"""Finish reasons of an answer. Others (cancelled, timeout, abort, not_finished, error) mean
none."""
Mask = Callable[[str], str]
"""Removes secrets from a text."""
MAX_MESSAGE = 600
"""Characters kept of a server's error message."""


class InvalidResponse(Exception):
    """A 2xx body without an answer: the reason, and what it holds instead."""

    def __init__(self, why: str, body: bytes | None = None) -> None:
        super().__init__(why, body)
        self._why, self._body = why, body

    def describe(self, mask: Mask = str) -> str:
        """Return the message, with received text masked before it is cut."""
        return (
            mask(self._why)
            if self._body is None
            else f"{mask(self._why)}: {describe(self._body, mask)}"
        )

    def __str__(self) -> str:
        return self.describe()


class LostStream(InvalidResponse):
    """An empty stream: trtllm-serve 1.2 loses streamed answers that a context server finished."""


class Said(msgspec.Struct):
    """An answer as the server gave it.

    `id` is its own id, and `fingerprint` its system_fingerprint (None: the server gives none).
    """

    id: str | None = None
    text: str = ""
    reasoning: str | None = None
    refusal: str | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    usage: Usage = Usage()
    tokens_per_step: float | None = None
    prompt_logprobs: PromptLogprobs | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_faults: tuple[str, ...] = ()
    fingerprint: str | None = None


class WireDelta(msgspec.Struct):
    """The parts of a message, or of a piece of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None


class WireChoice(msgspec.Struct):
    """One answer, or a piece of it."""

    index: int | None = 0
    text: str | None = None
    message: WireDelta | None = None
    delta: WireDelta | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    avg_decoded_tokens_per_iter: Any = None


class Body(msgspec.Struct):
    """The relevant fields of an answer or a chunk."""

    id: Any = None
    choices: list[WireChoice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    system_fingerprint: Any = None


BOM = b"\xef\xbb\xbf"
"""Some servers put this before their JSON."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
read_body = msgspec.json.Decoder(Body).decode
_USAGE = {"include_usage": True}


def route(prompt: Prompt) -> str:
    """Return the path below the base URL for a prompt."""
    return COMPLETIONS if isinstance(prompt, str) else CHAT_COMPLETIONS


def encode(
    request: Request,
    model: str,
    *,
    stream: bool = False,
    max_tokens_field: str = "max_tokens",
    over: Mapping[str, object] | None = None,
) -> bytes:
    """Return the JSON body of a request.

    Omits sampling values of None and an empty `stop`. Fields of `over` replace any other.
    """
    sampling = request.sampling
    body: dict[str, object] = {"model": model}
    if isinstance(request.prompt, str):
        body["prompt"] = request.prompt
    else:
        body["messages"] = [
            {"role": turn.role, "content": turn.content} if type(turn) is Message else _write(turn)
            for turn in request.prompt
        ]
    # OpenAI renamed the field for chat only.
    body["max_tokens" if isinstance(request.prompt, str) else max_tokens_field] = (
        sampling.max_tokens
    )
    for name, value in (
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("seed", sampling.seed),
    ):
        if value is not None:
            body[name] = value
    if sampling.stop:
        body["stop"] = sampling.stop
    if stream:
        body["stream"] = True
        body["stream_options"] = _USAGE
    body.update(request.extra)
    if over:
        body.update(over)
    return _encoder.encode(body)


def _write(turn: Message) -> dict[str, object]:
    """Return a turn of a kind other than Message as it is sent."""
    told: dict[str, object] = {"role": turn.role, "content": turn.content}
    if isinstance(turn, CallMessage):
        told["tool_calls"] = [
            {"id": one_id, "type": "function", "function": call}
            for one_id, call in zip(turn.call_ids, turn.tool_calls, strict=True)
        ]
    elif isinstance(turn, ResultMessage):
        told["tool_call_id"] = turn.call_id
    return told


def decode(body: bytes, content_type: str) -> Said:
    """Return the answer in a complete 2xx body. Raises InvalidResponse if it holds none."""
    try:
        parsed = read_body(body.removeprefix(BOM))
    except UNREADABLE as error:
        raise InvalidResponse(
            f"not an OpenAI answer ({content_type or 'no content type'})", body
        ) from error
    refuse_error(parsed, body)
    if not parsed.choices:
        raise InvalidResponse("no choices in the answer", body)
    choice = first_choice(parsed.choices, body)
    message = choice.message
    text = choice.text if message is None else message.content
    calls = ToolCalls()
    if message is not None and message.tool_calls:
        calls.add(message.tool_calls)
    if not choice.finish_reason:
        why = "no finish_reason, so the answer may be incomplete"
        raise InvalidResponse(why if text or calls else "neither a text nor a finish_reason", body)
    said = Said(
        id=fields.answer_id(parsed.id),
        text=text or "",
        finish_reason=read_finish_reason(choice.finish_reason),
        stop_reason=fields.stop_string(choice.stop_reason),
        usage=fields.usage(parsed.usage),
        tokens_per_step=fields.tokens_per_step(choice.avg_decoded_tokens_per_iter),
        tool_calls=calls.whole(),
        call_faults=calls.faults() if calls else (),
        fingerprint=fields.fingerprint(parsed.system_fingerprint),
    )
    if message is not None:
        said.reasoning, said.refusal = (
            message.reasoning_content or message.reasoning,
            message.refusal,
        )
    return said


class _Indexed(Protocol):
    @property
    def index(self) -> int | None: ...


_Kind = TypeVar("_Kind", bound=_Indexed)


def first_choice(choices: Sequence[_Kind], body: bytes) -> _Kind:
    """Return the only choice with index 0 or no index. Raises InvalidResponse otherwise."""
    if len(choices) == 1 and not choices[0].index:
        return choices[0]
    found = [choice for choice in choices if not choice.index]
    if len(found) != 1:
        raise InvalidResponse(f"{len(found) or 'no'} choices with the index 0 in the answer", body)
    return found[0]


def refuse_error(parsed: Body, body: bytes) -> None:
    """Raise InvalidResponse for an error object that came with a 200."""
    if parsed.error is not None or parsed.object == "error":
        raise InvalidResponse("an error object in a successful answer", body)


def read_finish_reason(reason: str | None) -> str | None:
    """Return a finish_reason. Raises InvalidResponse for one that means no answer."""
    if reason and reason not in FINISHED:
        raise InvalidResponse(f"the generation ended without an answer: finish_reason {reason!r}")
    return reason or None


_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def describe(body: bytes, mask: Mask = str) -> str:
    """Return the masked message of an error body, at most MAX_MESSAGE characters.

    Known shapes: {"message": str}, {"error": str}, {"error": {"message": str}}, {"detail": str or
    list}, plain text, an HTML page, an empty body.
    """
    text = mask(body.decode("utf-8", "replace").strip())[: 8 * MAX_MESSAGE]
    if not text:
        return "an empty body"
    try:
        found = _message(msgspec.json.decode(body))
    except UNREADABLE:
        found = None
        if text[:1] == "<":
            title = _TITLE.search(text)
            found = f"an HTML page{f' titled {title.group(1).strip()!r}' if title else ''}"
    return (mask(found) if found else text)[:MAX_MESSAGE]


def _message(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("message", "error", "detail", "msg"):
            if value.get(key):
                return _message(value[key])
    if isinstance(value, list) and value:
        return "; ".join(filter(None, map(_message, value))) or None
    return None
