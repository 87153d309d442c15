"""OpenAI JSON to nouns and back. Pure: bytes in, nouns out, no I/O.

Bodies are decoded leniently in what they may hold beside the answer, and strictly in what makes an answer: anything
without one is an `InvalidResponse`, never an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from serve_eval.schema import Prompt, Request, Response, Usage

COMPLETIONS = "/completions"
CHAT_COMPLETIONS = "/chat/completions"
FINISHED = frozenset({"stop", "length", "content_filter", "tool_calls", "function_call", "eos_token", "stop_sequence"})
"""Reasons for which a generation ends with an answer. Others (cancelled, timeout, abort, not_finished, error) end it
without one."""
MAX_MESSAGE = 600
"""Characters kept of a server's error message."""


class InvalidResponse(Exception):
    """A 2xx body that holds no answer."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Delta | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Body)


def route(prompt: Prompt) -> str:
    """Path below the base URL: a text is completed, messages are answered."""
    return COMPLETIONS if isinstance(prompt, str) else CHAT_COMPLETIONS


def encode(request: Request, model: str) -> bytes:
    """The JSON body of a request. Sampling is always sent in full; `stop` and `seed` only when they are set."""
    sampling = request.sampling
    body: dict[str, object] = {"model": model}
    if isinstance(request.prompt, str):
        body["prompt"] = request.prompt
    else:
        body["messages"] = [{"role": turn.role, "content": turn.content} for turn in request.prompt]
    body["max_tokens"] = sampling.max_tokens
    body["temperature"] = sampling.temperature
    body["top_p"] = sampling.top_p
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = sampling.stop
    body.update(request.extra)
    return _encoder.encode(body)


def decode(body: bytes, content_type: str, stop: Sequence[str] = ()) -> Response:
    """The answer in a 2xx body, JSON or a whole event stream. Raises InvalidResponse when there is none.

    The text is cut at the first stop string, since some servers leave it in.
    """
    streamed = content_type.lower().startswith("text/event-stream")
    answer = _from_events(body) if streamed else _from_json(body, content_type)
    text = cut_at_stop(answer.text, stop)
    return answer if text is answer.text else replace(answer, text=text)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the earliest stop string."""
    ends = [end for end in map(text.find, stop) if end >= 0]
    return text[: min(ends)] if ends else text


def _from_json(body: bytes, content_type: str) -> Response:
    try:
        parsed = _decoder.decode(body)
    except _UNREADABLE as error:
        raise InvalidResponse(
            f"not an OpenAI answer ({content_type or 'no content type'}): {describe(body)}"
        ) from error
    _refuse_error(parsed, body)
    if not parsed.choices:
        raise InvalidResponse(f"no choices in the answer: {describe(body)}")
    choice = parsed.choices[0]
    said = choice.message or _Delta(content=choice.text)
    return _answer(said, choice.finish_reason, parsed.usage, body)


def _from_events(body: bytes) -> Response:
    """A server-sent event stream that was read to its end. It must hold a finish_reason, [DONE] or not."""
    said, finish, usage = _Delta(), None, None
    for event in _events(body):
        if event == b"[DONE]":
            break
        try:
            parsed = _decoder.decode(event)
        except _UNREADABLE as error:
            raise InvalidResponse(f"not an OpenAI stream: {describe(event)}") from error
        _refuse_error(parsed, event)
        usage = parsed.usage or usage
        for choice in parsed.choices or ():
            _append(said, choice.delta or _Delta(content=choice.text))
            finish = choice.finish_reason or finish
    if finish is None:
        raise InvalidResponse("the stream ended without a finish_reason")
    return _answer(said, finish, usage, body)


def _events(body: bytes) -> list[bytes]:
    lines = [line.strip() for line in body.replace(b"\r", b"\n").split(b"\n")]
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _append(said: _Delta, delta: _Delta) -> None:
    for name in ("content", "reasoning_content", "reasoning", "refusal"):
        piece = getattr(delta, name)
        if piece is not None:
            setattr(said, name, (getattr(said, name) or "") + piece)


def _refuse_error(parsed: _Body, body: bytes) -> None:
    if parsed.error is not None:
        raise InvalidResponse(f"an error object in a successful answer: {describe(body)}")


def _answer(said: _Delta, finish: str | None, usage: object, body: bytes) -> Response:
    finish = finish or None
    if finish is None and not said.content:
        raise InvalidResponse(f"neither a text nor a finish_reason: {describe(body)}")
    if finish is not None and finish not in FINISHED:
        raise InvalidResponse(f"the generation ended without an answer: finish_reason {finish[:80]!r}")
    return Response(
        text=said.content or "",
        finish_reason=finish,
        reasoning=said.reasoning_content or said.reasoning,
        refusal=said.refusal,
        usage=Usage(prompt_tokens=_count(usage, "prompt_tokens"), completion_tokens=_count(usage, "completion_tokens")),
    )


def _count(usage: object, name: str) -> int:
    """A token count of a usage object; 0 where it is missing or no number."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def describe(body: bytes) -> str:
    """The message of an error body in any of the shapes that servers use, at most MAX_MESSAGE characters.

    Known shapes: {"message": str}, {"error": str}, {"error": {"message": str}}, {"detail": str or list}, plain text,
    an HTML page, nothing at all.
    """
    text = body[: 8 * MAX_MESSAGE].decode("utf-8", "replace").strip()
    if not text:
        return "an empty body"
    try:
        found = _message(msgspec.json.decode(body))
    except _UNREADABLE:
        found = None
        if text[:1] == "<":
            title = _TITLE.search(text)
            found = f"an HTML page{f' titled {title.group(1).strip()!r}' if title else ''}"
    return (found or text)[:MAX_MESSAGE]


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


def version(body: bytes) -> str | None:
    """The version of a /version answer; None when it is not one."""
    try:
        told = msgspec.json.decode(body)["version"]
    except (*_UNREADABLE, KeyError, TypeError):
        return None
    return told if isinstance(told, str) else None


def model_ids(body: bytes) -> list[str]:
    """The ids of a /v1/models answer; empty when it is not one."""
    try:
        data = msgspec.json.decode(body)
        return [entry["id"] for entry in data["data"] if isinstance(entry["id"], str)]
    except (*_UNREADABLE, KeyError, TypeError):
        return []
