"""Tell errors that came with a 200, in place of an answer or within one. Pure.

`error`, also within a choice, and an `object` of that name are errors with any answer. Other
fields (`detail`, `errors`, `status`, `code`, `type`) have other uses too: they are errors where
no text comes with them, and so is a status of 400 or more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from serve_eval.client.wire_format import odd_bodies
from serve_eval.client.wire_format.bodies import Body, WireChoice, read_signs
from serve_eval.client.wire_format.invalid import InvalidResponse

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
    told = odd_bodies.read_json(payload)
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
