"""Read answers in forms that differ from OpenAI's, and errors that came with a 200.

Decoding fails on a field of another type, and finds no text where it is in another field: this
module then reads the JSON again. A text in a field of unknown meaning is refused by name, since an
empty answer would be scored in its place.

`error`, also within a choice, and an `object` of that name are errors with any answer. Other
fields (`detail`, `errors`, `status`, `code`, `type`) have other uses too: they are errors where
no text comes with them, and so is a status of 400 or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from serve_eval.client.wire_format import bodies
from serve_eval.client.wire_format.bodies import Body, WholeBody, WireChoice, WireDelta, read_signs
from serve_eval.client.wire_format.refusal import UNREADABLE, InvalidResponse

_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "thoughts")
_ANSWER = ("index", "text", "message", "delta", "content", "role", "refusal", "tool_calls")
_ASIDE = (
    *("function_call", "logprobs", "object", "model", "usage", "created", "annotations", "audio"),
    *("citations", "reasoning_details", "error", "provider", "status", "seed", "phase"),
    *("token_ids", "prompt_token_ids", "prompt_logprobs", "system_fingerprint", "service_tier"),
    *("content_filter_results", "content_filter_result", "content_filter_offsets"),
    *("kv_transfer_params", "disaggregated_params", "mm_embedding_handle", "encrypted_content"),
    *("matched_stop", "stop_sequence"),
)
_READ = frozenset((*_ANSWER, *_ASIDE, *_THOUGHTS))
"""Fields of choices and messages whose meaning is known: those that are read, and those that hold
no text of the answer."""
_ABOUT = re.compile(
    r"(?:^|_)(?:id|name|reason|type|at|date|time|handle|version|hash|signature|tier|format|url"
    r"|language|lang|cost|state|trace|ids)$|finishReason|stopReason",
    re.IGNORECASE,
)
"""Ends of the names of fields that say something about an answer."""
_TOP = (
    *("text", "content", "output", "output_text", "response", "generated_text", "answer"),
    *("completion", "message", "result", "delta", "outputs", "generation", "candidates"),
)
"""Fields of a body in which servers of other APIs put the text."""
_TEXT_PARTS = frozenset({None, "text", "output_text", "input_text", "text_delta"})
_THOUGHT_PARTS = frozenset({"thinking", "reasoning", "reasoning_text", "summary_text", "thought"})


class NoObject(InvalidResponse):
    """JSON that is no object."""


class OddChoice(NamedTuple):
    """The text and the calls of a choice. `places` names the fields that hold the text."""

    text: str
    thoughts: str
    calls: list[Any]
    places: tuple[str, ...]


def mend(payload: bytes) -> WholeBody:
    """Return a body with values of the usual types.

    Raises InvalidResponse if the JSON cannot be a body, and DecodeError if it is none.
    """
    told = msgspec.json.decode(payload)
    if not isinstance(told, dict):
        raise NoObject("not an OpenAI answer (no JSON object)", payload)
    choices = told.get("choices")
    known = {name: told.get(name) for name in _SIGNS}
    return WholeBody(
        choices=(
            [_mend_choice(one, payload) for one in choices] if isinstance(choices, list) else None
        ),
        usage=bodies.find_usage(told),
        object=_text_or_none(told.get("object")),
        **known,
    )


_SIGNS = ("id", "error", "system_fingerprint", "status", "code")


def _mend_choice(one: object, payload: bytes) -> WireChoice:
    if not isinstance(one, dict):
        raise InvalidResponse("not an OpenAI answer: a choice is no JSON object", payload)
    text, message, delta = one.get("text"), one.get("message"), one.get("delta")
    return WireChoice(
        index=_index(one.get("index"), payload),
        text=None if text is None else _read_text(text, "text", payload),
        message=_mend_message(message, "message", payload),
        delta=_mend_message(delta, "delta", payload),
        finish_reason=_finish(one.get("finish_reason")),
        stop_reason=one.get("stop_reason"),
        matched_stop=one.get("matched_stop"),
        avg_decoded_tokens_per_iter=one.get("avg_decoded_tokens_per_iter"),
        error=one.get("error"),
    )


def _mend_message(told: object, place: str, payload: bytes) -> WireDelta | None:
    if told is None:
        return None
    if not isinstance(told, dict):
        return WireDelta(content=_read_text(told, place, payload))
    content = told.get("content")
    thoughts = _thoughts_of(told)
    return WireDelta(
        content=None if content is None else _read_text(content, f"{place}.content", payload),
        reasoning=thoughts or None,
        refusal=_text_or_none(told.get("refusal")),
        tool_calls=_calls_of(told),
        error=told.get("error"),
    )


def read_json(payload: bytes) -> Any:
    """Return the JSON of a body of which the usual fields were read.

    Raises InvalidResponse if it cannot be read as a whole.
    """
    try:
        return msgspec.json.decode(payload)
    except UNREADABLE as error:
        raise InvalidResponse("not an OpenAI answer: its JSON is too deep", payload) from error


def find_said(payload: bytes) -> OddChoice:
    """Return what the first choice says outside the fields that OpenAI's answers use.

    Raises InvalidResponse if two fields hold different texts, or a field of unknown meaning one.
    """
    told = read_json(payload)
    choices = told.get("choices") if isinstance(told, dict) else None
    first = next(
        (
            one
            for one in (choices if isinstance(choices, list) else ())
            if isinstance(one, dict) and one.get("index") in (0, None, "0")
        ),
        None,
    )
    if first is None:
        if isinstance(told, dict):
            _refuse_unread(told, {}, {}, payload)
        return OddChoice("", "", [], ())
    holders = {
        name: one for name in ("message", "delta") if isinstance(one := first.get(name), dict)
    }
    found = {
        place: text
        for place, value in _list_texts(first, holders)
        if (text := _read_text(value, place, payload))
    }
    if len(set(found.values())) > 1:
        raise InvalidResponse(
            f"the answer has different texts in its fields {' and '.join(found)}", payload
        )
    calls = [call for one in holders.values() for call in _calls_of(one) or ()]
    thoughts = next((text for one in holders.values() if (text := _thoughts_of(one))), "")
    text = next(iter(found.values()), "")
    if not text.strip() and not calls:
        _refuse_unread(told, first, holders, payload)
    return OddChoice(text, thoughts, calls, tuple(found))


def _list_texts(
    first: Mapping[str, Any], holders: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, object]]:
    """Yield the fields of a choice that can hold only its text."""
    for name, one in holders.items():
        yield f"{name}.content", one.get("content")
        yield f"{name}.text", one.get("text")
    yield "text", first.get("text")
    yield "content", first.get("content")
    for name in ("message", "delta"):
        if name not in holders:
            yield name, first.get(name)


def _refuse_unread(
    told: Mapping[str, Any],
    first: Mapping[str, Any],
    holders: Mapping[str, Mapping[str, Any]],
    payload: bytes,
) -> None:
    """Raise InvalidResponse if a field that is not read may hold the text of an empty answer."""
    places = [
        *((f"choices[0].{name}", one) for name, one in _unread(first)),
        *((f"{held}.{name}", one) for held, h in holders.items() for name, one in _unread(h)),
        *((name, told[name]) for name in _TOP if name in told),
    ]
    for place, value in places:
        if _holds_text(value):
            raise InvalidResponse(
                f"the answer has no text, and its field {place!r}, which is not read, may hold it",
                payload,
            )


def _unread(held: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return ((n, one) for n, one in held.items() if n not in _READ and not _ABOUT.search(n))


def _holds_text(value: object) -> bool:
    """Return True if a value is a text, or has one in its parts."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, dict):
        return any(_holds_text(value.get(name)) for name in ("text", "content", "parts", "value"))
    return isinstance(value, list) and any(map(_holds_text, value))


def _read_text(value: object, place: str, payload: bytes) -> str:
    """Return a text that is one, or that is given in parts. Raises InvalidResponse for another."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dict):
        if "parts" in value:
            return _read_text(value["parts"], f"{place}.parts", payload)
        kind = _text_or_none(value.get("type"))
        if kind in _THOUGHT_PARTS or kind == "refusal":
            return ""
        if kind in _TEXT_PARTS and isinstance(value.get("text"), str | dict):
            inner = value["text"]
            return (
                inner if isinstance(inner, str) else _read_text(inner.get("value"), place, payload)
            )
        if "content" in value:
            return _read_text(value["content"], f"{place}.content", payload)
        if not _holds_text(list(value.values())):
            return ""
    if isinstance(value, list):
        return "".join(
            _read_text(one, f"{place}[{number}]", payload) for number, one in enumerate(value)
        )
    raise InvalidResponse(f"not an OpenAI answer: its field {place!r} is no text", payload)


def _thoughts_of(held: Mapping[str, Any]) -> str:
    """Return the thoughts in a message, by any of their names and also among its parts."""
    for name in _THOUGHTS:
        if text := _plain(held.get(name)):
            return text
    content = held.get("content")
    parts = content if isinstance(content, list) else ()
    return "".join(
        _plain(next((one[n] for n in ("thinking", "reasoning", "text", "summary") if n in one), ""))
        for one in parts
        if isinstance(one, dict) and _text_or_none(one.get("type")) in _THOUGHT_PARTS
    )


def _plain(value: object) -> str:
    """Return a text, or the texts of its parts; "" for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _plain(value.get("text") or value.get("content"))
    return "".join(map(_plain, value)) if isinstance(value, list) else ""


def _calls_of(held: Mapping[str, Any]) -> list[Any] | None:
    """Return the tool calls of a message; an older server has one `function_call`."""
    calls, one = held.get("tool_calls"), held.get("function_call")
    if calls and isinstance(calls, list):
        return calls
    called = isinstance(one, dict) and ("name" in one or "arguments" in one)
    return [{"index": 0, "id": "call", "function": one}] if called else None


def _finish(told: object) -> str | None:
    """Return a finish_reason. SGLang's own form is an object with a type."""
    if isinstance(told, dict):
        told = told.get("type")
    return told if isinstance(told, str) else None


def _index(told: object, payload: bytes) -> int | None:
    if isinstance(told, str) and told.isdecimal():
        return int(told)
    if told is None or isinstance(told, int):
        return told
    raise InvalidResponse("not an OpenAI answer: the index of a choice is no number", payload)


def _text_or_none(told: object) -> str | None:
    return told if isinstance(told, str) else None


_FAULT = re.compile(r"error|exception|fail|fault", re.IGNORECASE)
_ENDED = re.compile(r"cancel|abort|timed?_?out", re.IGNORECASE)
_STATUSES = range(400, 600)
_NAMED = re.compile(r"err|error|fault|exception|traceback|failure", re.IGNORECASE)
"""The beginning of the names of fields that hold an error, in an event without choices."""


def refuse_error(parsed: Body, body: bytes, *, answered: bool) -> None:
    """Raise InvalidResponse for an error object that came with a 200.

    `answered`: the body also holds a text or a call.
    """
    if is_error(parsed.error, answered=answered) or _FAULT.search(parsed.object or ""):
        raise InvalidResponse("an error object in a successful answer", body)


def refuse_status(status: object, code: object, body: bytes) -> None:
    """Raise InvalidResponse if a body has the status of an error."""
    if _is_status(status) or _is_status(code):
        raise InvalidResponse("the status of an error in a successful answer", body)


def refuse_signs(body: bytes) -> None:
    """Raise InvalidResponse if a body without a text says that it is an error."""
    signs = read_signs(body)
    if (
        signs.detail
        or signs.errors
        or signs.error_code
        or signs.error_msg
        or signs.error_message
        or signs.err
        or signs.exception
        or (isinstance(signs.type, str) and _FAULT.search(signs.type))
        or _says_failed(signs.status)
        or _says_failed(signs.code)
    ):
        raise InvalidResponse("an error in place of an answer", body)


def refuse_choice_error(choice: WireChoice, body: bytes, *, answered: bool) -> None:
    """Raise InvalidResponse for an error within a choice, or within its message."""
    said = choice.delta or choice.message
    if is_error(choice.error, answered=answered) or (
        said is not None and is_error(said.error, answered=answered)
    ):
        raise InvalidResponse("an error within a choice of a successful answer", body)


def is_error(told: object, *, answered: bool) -> bool:
    """Return True if the value of `error` is one. With an answer, false and "" say none."""
    return told is not None and not (answered and (told is False or told == ""))


def refuse_named(payload: bytes) -> None:
    """Raise InvalidResponse if a body or an event without a text has a field named as an error.

    So do those with a `message` alone, or with one and a status. Gateways' own events are ignored.
    """
    told = read_json(payload)
    if not isinstance(told, dict):
        return
    named = [name for name, value in told.items() if value and _NAMED.match(name)]
    says = any(isinstance(told.get(name), str) for name in ("message", "msg"))
    alone = says and told.keys() <= {"message", "msg", "id", "object", "created", "model"}
    signed = says and any(told.get(name) for name in ("code", "status"))
    if named or alone or (signed and not _is_well(told)):
        raise InvalidResponse("an error in place of an answer", payload)


def _is_well(told: Mapping[str, Any]) -> bool:
    return all(
        told.get(name) in (None, 0, 200, "", "0", "200", "ok", "OK", "success", True)
        for name in ("code", "status")
    )


def _is_status(told: object) -> bool:
    number = int(told) if isinstance(told, str) and told.isdecimal() and len(told) < 6 else told
    return type(number) is int and number in _STATUSES


def _says_failed(told: object) -> bool:
    return told is not None and (
        _is_status(told)
        or (isinstance(told, str) and bool(_FAULT.search(told) or _ENDED.search(told)))
    )
