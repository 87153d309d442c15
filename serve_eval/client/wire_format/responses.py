"""Convert requests to the JSON of /v1/responses, and its bodies to answers.

The form is that of OpenAI's reference. llama-server says "completed" of answers that it cut, and
trtllm-serve leaves out why an answer is incomplete and how many tokens it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from serve_eval.client.wire_format import bodies, odd_bodies
from serve_eval.client.wire_format.bodies import Said, ToolCalls
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.refusal import UNREADABLE, InvalidResponse
from serve_eval.schema import (
    AudioUrlPart,
    CallMessage,
    ImagePart,
    InputAudioPart,
    Message,
    Request,
    ResultMessage,
    SamplingParams,
    TextPart,
    ThoughtMessage,
)

OBJECT = "response"
COMPLETED, INCOMPLETE = "completed", "incomplete"
_UNFINISHED = ("in_progress", "queued")
_TEXTS = frozenset({"output_text", "text"})


# Requests


def write(request: Request, model: str, *, stream: bool = False) -> dict[str, Any]:
    """Return the body of a request whose prompt is messages.

    The route has no stop strings: `settle` applies them to the answer. Fields of chat requests are
    translated, and `store` is false unless the request says otherwise.
    """
    assert not isinstance(request.prompt, str)
    turns, sampling = request.prompt, request.sampling
    body: dict[str, Any] = {"model": model}
    if turns and turns[0].role == "system" and isinstance(turns[0].content, str):
        body["instructions"], turns = turns[0].content, turns[1:]
    body["input"] = [item for number, turn in enumerate(turns) for item in _write(turn, number)]
    body["max_output_tokens"] = sampling.max_tokens
    for name in ("temperature", "top_p", "seed"):
        if (value := getattr(sampling, name)) is not None:
            body[name] = value
    body["store"] = False
    if stream:
        body["stream"] = True
    body.update(translate(request.extra))
    return body


def _write(turn: Message, number: int) -> Iterator[dict[str, Any]]:
    """Yield the input items of a turn."""
    if isinstance(turn, ResultMessage):
        yield {"type": "function_call_output", "call_id": turn.call_id, "output": turn.text}
        return
    if turn.role == "assistant":
        said = turn.whole_text if isinstance(turn, ThoughtMessage) else turn.text
        if isinstance(turn, ThoughtMessage) and not turn.tagged:
            told = [{"type": "reasoning_text", "text": turn.reasoning}]
            yield {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": told}
        if said:  # in the long form, since llama-server takes no other
            text = {"type": "output_text", "text": said, "annotations": []}
            yield {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": COMPLETED,
                "content": [text],
            }
    else:
        content = turn.content
        parts = content if isinstance(content, str) else [_write_part(part) for part in content]
        yield {"type": "message", "role": turn.role, "content": parts}
    if isinstance(turn, CallMessage):
        for call_id, call in zip(turn.call_ids, turn.tool_calls, strict=True):
            called = {"name": call.name, "arguments": call.arguments}
            yield {"type": "function_call", "call_id": call_id, **called}


def _write_part(part: Any) -> Any:
    """Return a part of a turn. Forms that OpenAI does not have are sent as they are for chat."""
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "image_url": part.image_url.url, "detail": "auto"}
        case InputAudioPart() | AudioUrlPart():
            return part
    return part


def translate(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat request by the names and in the forms of this route."""
    body = dict(extra)
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [_flatten(tool) for tool in tools]
    if isinstance(choice := body.get("tool_choice"), dict):
        body["tool_choice"] = _flatten(choice)
    if isinstance(wanted := body.pop("response_format", None), dict):
        inner = wanted.get("json_schema")
        flat = {"type": wanted.get("type"), **(inner if isinstance(inner, dict) else {})}
        body["text"] = {**body.get("text", {}), "format": flat}
    if (effort := body.pop("reasoning_effort", None)) is not None:
        body["reasoning"] = {**body.get("reasoning", {}), "effort": effort}
    return body


def _flatten(told: Any) -> Any:
    """Return a tool, or the choice of one, without the level `function`."""
    function = told.get("function") if isinstance(told, dict) else None
    return {"type": "function", **function} if isinstance(function, dict) else told


# Answers


def decode(body: bytes, content_type: str) -> Said:
    """Return the answer in a complete 2xx body. Raises InvalidResponse if it holds none."""
    body = body.removeprefix(bodies.BOM)
    try:
        told = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise InvalidResponse(
            f"not an answer of /v1/responses ({content_type or 'no content type'})", body
        ) from error
    return read(told, body)


def read(told: object, body: bytes) -> Said:
    """Return the answer in a response object. Raises InvalidResponse if it holds none."""
    if not isinstance(told, dict):
        raise InvalidResponse("not an answer of /v1/responses (no JSON object)", body)
    finish = read_status(told, body)
    output = told.get("output")
    if not isinstance(output, list):
        odd_bodies.refuse_signs(body)
        raise InvalidResponse("no output in the answer", body)
    if finish == COMPLETED and any(map(_is_cut, output)):
        finish = INCOMPLETE
    said = read_items(output, body)
    said.id = bodies.answer_id(told.get("id"))
    said.usage = bodies.usage(told.get("usage"))
    if not said.text and not said.tool_calls and isinstance(told.get("output_text"), str):
        said.text = told["output_text"]
    name_finish(said, finish)
    return said


def name_finish(said: Said, finish: str) -> None:
    """Set the finish_reason by the names of chat, from what a status means."""
    meant = "length" if finish == INCOMPLETE else meaning(finish)
    said.finish_reason = "tool_calls" if finish == COMPLETED and said.tool_calls else meant
    if finish != COMPLETED and finish != meant:
        said.server_finish = finish


def read_status(told: Mapping[str, Any], body: bytes) -> str:
    """Return COMPLETED, INCOMPLETE or the reason of an incomplete answer.

    Raises InvalidResponse for an error, and for a status that means no answer.
    """
    status = told.get("status")
    if odd_bodies.is_error(told.get("error"), answered=status in (COMPLETED, INCOMPLETE)):
        raise InvalidResponse("an error object in a successful answer", body)
    if told.get("object") not in (None, OBJECT) or "choices" in told:
        raise InvalidResponse(f"not an answer of /v1/responses: {_kind_of(told)}", body)
    if status == COMPLETED:
        return COMPLETED
    if status == INCOMPLETE:
        details = told.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if not isinstance(reason, str) or not reason:
            return INCOMPLETE
        if meaning(reason) in (BREAK, PENDING):
            raise InvalidResponse(f"the generation ended without an answer: {reason!r}", body)
        return reason
    if status in _UNFINISHED:
        raise InvalidResponse(f"the answer is not finished: its status is {status!r}", body)
    if status is None:
        odd_bodies.refuse_signs(body)
        raise InvalidResponse("no status, so the answer may be incomplete", body)
    raise InvalidResponse(f"the generation ended without an answer: status {status!r}", body)


def _kind_of(told: Mapping[str, Any]) -> str:
    return "it has choices" if "choices" in told else f"its object is {told.get('object')!r}"


def _is_cut(item: object) -> bool:
    return isinstance(item, dict) and item.get("status") == INCOMPLETE


def read_items(output: Iterable[Any], body: bytes) -> Said:
    """Return the texts, thoughts, refusals and calls of the output items.

    Raises InvalidResponse if the only answer is in items of other types.
    """
    said, calls = Said(), ToolCalls()
    texts, thoughts, refusals = list[tuple[str, str]](), list[str](), list[str]()
    others = set[str]()
    for item in output:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "message" or (kind is None and isinstance(item, dict) and "content" in item):
            text, refusal = _read_message(item, body)
            texts.append((str(item.get("phase") or ""), text))
            refusals.append(refusal)
        elif kind == "reasoning":
            thoughts.append(_read_thoughts(item))
        elif kind == "function_call":
            calls.add([{"id": item.get("call_id") or item.get("id"), "function": item}])
        elif kind in _TEXTS:
            texts.append(("", _text(item.get("text"))))
        else:
            others.add(str(kind))
    if others and not texts and not calls:
        raise InvalidResponse(f"the answer is in items of unknown types: {sorted(others)}", body)
    # A model may say something before it answers; it marks that as a commentary.
    answers = [text for phase, text in texts if phase != "commentary"]
    said.text = "".join(answers or (text for _, text in texts))
    said.reasoning = "\n".join(filter(None, thoughts)) or None
    said.refusal = "".join(refusals) or None
    if calls:
        said.tool_calls, said.call_faults = calls.whole(), calls.faults()
    return said


def _read_message(item: Mapping[str, Any], body: bytes) -> tuple[str, str]:
    """Return (text, refusal) of a message. Raises InvalidResponse for a text in another part."""
    content = item.get("content")
    if content is None or isinstance(content, str):
        return content or "", ""
    texts, refusals = [], []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            refusals.append(_text(part.get("refusal")))
        elif kind in _TEXTS:
            texts.append(_text(part.get("text")))
        elif isinstance(part, dict) and _text(part.get("text")).strip():
            raise InvalidResponse(
                f"the answer has a text in a part of the unknown type {kind!r}", body
            )
    return "".join(texts), "".join(refusals)


def _read_thoughts(item: Mapping[str, Any]) -> str:
    """Return the thoughts of a reasoning item, or the summary that stands for them."""
    for name in ("content", "summary"):
        told = item.get(name)
        if isinstance(told, str):
            return told
        parts = told if isinstance(told, list) else ()
        if found := "\n".join(
            text for one in parts if isinstance(one, dict) and (text := _text(one.get("text")))
        ):
            return found
    return _text(item.get("text"))


def _text(told: object) -> str:
    return told if isinstance(told, str) else ""


def settle(said: Said, sampling: SamplingParams) -> Said:
    """Set the finish_reason that chat would have told for this sampling.

    A stop string ends the answer, although the server did not know it. An answer of all the tokens
    that were asked for was cut, although llama-server says that it is complete.
    """
    found = [(at, one) for one in sampling.stop if (at := said.text.find(one)) >= 0]
    stop = min(found)[1] if found else None
    if stop is not None:
        said.finish_reason, said.stop_reason, said.server_finish = "stop", stop, None
    elif said.finish_reason == "stop" and said.usage.completion_tokens >= sampling.max_tokens:
        said.finish_reason, said.server_finish = "length", COMPLETED
    return said
