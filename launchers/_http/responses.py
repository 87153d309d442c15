"""Serve /v1/responses through the chat route: requests become chats, answers become items.

All servers of this package use this module. It writes two dialects: OpenAI's, and that of
trtllm-serve, which counts no tokens, strips texts, does not say why an answer is incomplete, and
names calls only at the end of a stream.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from typing import Any, Literal

import msgspec
from aiohttp import web

from serve_eval.frozen import freeze
from serve_eval.launchers._http.requests import RefusedRequest, bad_request, encode, trtllm_error
from serve_eval.launchers._http.server import send_stream

PATH = "/v1/responses"
Dialect = Literal["openai", "trtllm"]
MOST_KEPT = 32
"""Conversations that a server keeps for `previous_response_id`, as trtllm-serve does."""
_OWN = ("input", "instructions", "max_output_tokens", "store", "previous_response_id", "text")
_NOT_SERVED = ("background", "include", "conversation", "truncation", "max_tool_calls")


@freeze
class ResponsesAsk:
    """A request of this route: the body of its chat, and what its answer repeats."""

    chat: dict[str, Any]
    stores: bool
    previous: str | None

    @property
    def raw(self) -> bytes:
        """The body of the chat as JSON."""
        return encode(self.chat)


class Conversations:
    """The turns behind the ids of answers, for servers that keep them."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, list[Any]] = OrderedDict()

    def find(self, name: str) -> list[Any]:
        """Return the turns up to an answer. Raises RefusedRequest if they are not kept."""
        if name not in self._turns:
            told = f"Response with id '{name}' not found."
            raise RefusedRequest(404, trtllm_error(told, "invalid_request_error", 404))
        return self._turns[name]

    def keep(self, name: str, asked: ResponsesAsk, message: Mapping[str, Any]) -> None:
        """Keep the turns of a request and its answer."""
        if asked.stores:
            turn = {"role": "assistant", "content": message.get("content") or ""}
            if message.get("tool_calls"):
                turn["tool_calls"] = message["tool_calls"]
            self._turns[name] = [*asked.chat["messages"], turn]
            while len(self._turns) > MOST_KEPT:
                self._turns.popitem(last=False)


def to_chat(raw: bytes, kept: Conversations | None = None) -> ResponsesAsk:
    """Return the chat that a request stands for. Raises RefusedRequest if it is invalid.

    Without `kept`, a server keeps no answers, as llama-server does not.
    """
    try:
        body = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad_request(str(error)) from error
    if wrong := next((name for name in _NOT_SERVED if body.get(name)), None):
        raise bad_request(f"`{wrong}` is not served")
    previous = body.get("previous_response_id")
    if previous and kept is None:
        raise bad_request("`previous_response_id` is not supported")
    turns = [] if kept is None or not previous else list(kept.find(previous))
    if instructions := body.get("instructions"):
        turns = [one for one in turns if one.get("role") != "system"]
        turns.insert(0, {"role": "system", "content": instructions})
    turns += _turns_of(body.get("input"))
    chat = {name: value for name, value in body.items() if name not in _OWN}
    chat["messages"] = turns
    if (most := body.get("max_output_tokens")) is not None:
        chat["max_tokens"] = most
    if chat.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    _rename(body, chat)
    return ResponsesAsk(chat=chat, stores=body.get("store") is not False, previous=previous)


def _rename(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    """Put the fields that chat has in another form into the body of the chat."""
    if tools := body.get("tools"):
        chat["tools"] = [
            {"type": "function", "function": {k: v for k, v in one.items() if k != "type"}}
            for one in tools
        ]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and "name" in choice:
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    wanted = (body.get("text") or {}).get("format")
    if wanted and wanted.get("type") == "json_schema":
        inner = {name: value for name, value in wanted.items() if name != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": inner}
    elif wanted:
        chat["response_format"] = wanted
    if effort := (chat.pop("reasoning", None) or {}).get("effort"):
        chat["reasoning_effort"] = effort


def _turns_of(given: Any) -> list[dict[str, Any]]:
    """Return the input items as turns of a chat. Raises RefusedRequest for an unknown item."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise bad_request("`input` must be a text or a list of items")
    turns: list[dict[str, Any]] = []
    thoughts = ""
    for item in given:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            turns.append({"role": item.get("role"), "content": _content_of(item.get("content"))})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if turns and turns[-1].get("tool_calls"):
                turns[-1]["tool_calls"].append(call)
            else:
                turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            told = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            turns.append({"role": "tool", **told})
        elif kind == "reasoning":
            thoughts = _thoughts_of(item)
            continue
        else:
            raise bad_request(f"input items of type {kind!r} are not served")
        if thoughts and turns[-1].get("role") == "assistant":
            turns[-1]["reasoning_content"] = thoughts
        thoughts = ""
    return turns


def _thoughts_of(item: Mapping[str, Any]) -> str:
    return "".join(str(part.get("text", "")) for part in item.get("content") or ())


def _content_of(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part_of(part) for part in content]
    if all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part_of(part: Any) -> dict[str, Any]:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str() as text}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str() as url}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": str()}:
            return dict(part)
    raise bad_request("a part of a message has no type")


# Answers


class ResponsesWriter:
    """Writes the answers of chats in the form of this route, whole or as events."""

    def __init__(self, dialect: Dialect = "openai", kept: Conversations | None = None) -> None:
        self._dialect, self._kept = dialect, kept

    def whole(self, asked: ResponsesAsk, body: bytes) -> bytes:
        """Return the body of an answer from that of a chat."""
        told = msgspec.json.decode(body)
        choices = told.get("choices") if isinstance(told, dict) else None
        if not choices:
            return body
        message = choices[0].get("message") or {}
        finish, usage = choices[0].get("finish_reason"), told.get("usage")
        return encode(self._response(asked, told, message, finish, usage))

    def _response(
        self,
        asked: ResponsesAsk,
        told: Mapping[str, Any],
        message: Mapping[str, Any],
        finish: str | None,
        usage: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the response object of a finished answer, and keep its conversation."""
        name = _id_of(told)
        cut = finish == "length"
        trtllm = self._dialect == "trtllm"
        response = {
            **_frame(asked, told, "incomplete" if cut else "completed"),
            "output": list(_items(message, name, trtllm=trtllm)),
            "usage": None if trtllm or usage is None else _usage(usage),
        }
        if cut and not trtllm:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._kept is not None:
            self._kept.keep(name, asked, message)
        return response

    async def events(
        self, asked: ResponsesAsk, chunks: AsyncIterable[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the events of an answer from those of a chat, as they come.

        A chat that ends without a finish_reason ends without the last event too.
        """
        numbers, writer = itertools.count(), _Pieces(calls=self._dialect == "openai")
        told: Mapping[str, Any] = {}
        finish, usage = None, None
        async for chunk in chunks:
            for payload in _payloads(chunk):
                if not told:
                    told = payload
                    frame = _frame(asked, told, "in_progress")
                    for kind in ("response.created", "response.in_progress"):
                        yield _event(next(numbers), kind, response={**frame, "output": []})
                usage = payload.get("usage") or usage
                for choice in payload.get("choices") or ():
                    finish = choice.get("finish_reason") or finish
                    for kind, fields in writer.take(choice.get("delta") or {}):
                        yield _event(next(numbers), kind, **fields)
        for kind, fields in writer.close():
            yield _event(next(numbers), kind, **fields)
        if finish is not None:
            response = self._response(asked, told, writer.message, finish, usage)
            cut = response["status"] == "incomplete" and self._dialect == "openai"
            ending = "response.incomplete" if cut else "response.completed"
            yield _event(next(numbers), ending, response=response)


async def send_events(
    request: web.Request, chunks: AsyncIterable[bytes], asked: ResponsesAsk | None
) -> web.StreamResponse:
    """Send the events of a chat, in the form of this route if it was `asked`."""
    events = chunks if asked is None else ResponsesWriter().events(asked, chunks)
    return await send_stream(request, events)


def write_whole(body: bytes, asked: ResponsesAsk | None) -> bytes:
    """Return the body of a chat's answer, in the form of this route if it was `asked`."""
    return body if asked is None else ResponsesWriter().whole(asked, body)


class _Pieces:
    """Turns the pieces of a chat's answer into events, and joins them to its message."""

    def __init__(self, *, calls: bool) -> None:
        self.message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
        self._calls, self._open, self._place = calls, "", -1

    def take(self, delta: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, kind in (("reasoning_content", "reasoning"), ("content", "message")):
            if piece := delta.get(name):
                yield from self._switch(kind, {"type": kind, "id": f"item_{self._place + 1}"})
                self.message[name] += piece
                part = "reasoning_text" if kind == "reasoning" else "output_text"
                where = {"output_index": self._place, "content_index": 0}
                yield f"response.{part}.delta", {**where, "delta": piece}
        for call in delta.get("tool_calls") or ():
            yield from self._take_call(call)

    def _take_call(self, call: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        known, function = self.message["tool_calls"], call.get("function") or {}
        if call.get("index", 0) >= len(known):
            begun = {"name": function.get("name"), "arguments": ""}
            known.append({"id": call.get("id"), "type": "function", "function": begun})
            item = {"type": "function_call", "call_id": call.get("id"), **begun}
            if self._calls:
                yield from self._switch(f"call {len(known)}", item)
        if piece := function.get("arguments"):
            known[-1]["function"]["arguments"] += piece
            if self._calls:
                where = {"output_index": self._place, "item_id": f"item_{self._place}"}
                yield "response.function_call_arguments.delta", {**where, "delta": piece}

    def _switch(self, name: str, item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Begin an item, unless it is the one that is open."""
        if name != self._open:
            yield from self.close()
            self._open, self._place = name, self._place + 1
            fields = {"output_index": self._place, "item": {**item, "status": "in_progress"}}
            yield "response.output_item.added", fields

    def close(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """End the item that is open."""
        if self._open == "message":
            done = {"output_index": self._place, "text": self.message["content"]}
            yield "response.output_text.done", done
        self._open = ""


def _payloads(chunk: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in the data lines of a chunk."""
    for line in chunk.split(b"\n"):
        if line.startswith(b"data: {"):
            yield msgspec.json.decode(line[6:])


def _event(number: int, kind: str, **fields: Any) -> bytes:
    data = encode({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _id_of(told: Mapping[str, Any]) -> str:
    return "resp_" + str(told.get("id", "")).rpartition("-")[2]


def _frame(asked: ResponsesAsk, told: Mapping[str, Any], status: str) -> dict[str, Any]:
    return {
        "id": _id_of(told),
        "object": "response",
        "created_at": told.get("created"),
        "model": told.get("model"),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "previous_response_id": asked.previous,
        "store": asked.stores,
        "usage": None,
    }


def _items(message: Mapping[str, Any], name: str, *, trtllm: bool) -> Iterator[dict[str, Any]]:
    """Yield the output items of a message: thoughts, text and calls."""
    text, thoughts = message.get("content") or "", message.get("reasoning_content") or ""
    text, thoughts = (text.strip(), thoughts.strip()) if trtllm else (text, thoughts)
    if thoughts:
        content = [{"type": "reasoning_text", "text": thoughts}]
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content}
    if text:
        shown: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        yield {
            "type": "message",
            "id": f"msg_{name}",
            "role": "assistant",
            "status": "completed",
            "content": [shown],
        }
    for call in message.get("tool_calls") or ():
        fields = {"call_id": call["id"], **call["function"], "status": "completed"}
        yield {"type": "function_call", "id": f"fc_{call['id']}", **fields}


def _usage(told: Mapping[str, Any]) -> dict[str, Any]:
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    return {
        names.get(name.removesuffix("_details"), name.removesuffix("_details"))
        + ("_details" if name.endswith("_details") else ""): value
        for name, value in told.items()
    }
