"""Find the field that a server refused, or the message of a body without an answer.

Servers that validate with pydantic list each error with its type, place and message, and often
repeat the request, so that a field's name alone proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

Mask = Callable[[str], str]
"""Removes secrets from a text."""
MAX_MESSAGE = 600
"""Characters kept of a server's error message."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
FOREIGN = ("not an OpenAI answer (", "not an OpenAI stream", "an HTML page, not a list of models")
"""Beginnings of the message about something that no OpenAI-compatible server sends."""


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


_SOURCE = re.compile(
    r"\s*^[ \t]*File \"[^\"\n]*\", line \d+(?:, in [^\n]*)?(?:\n[ \t]+[A-Z]+ /\S*)?", re.MULTILINE
)
"""The place in a server's source that FastAPI adds to errors of validation, with the route, and
that tracebacks have. It says nothing about the request."""
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def describe(body: bytes, mask: Mask = str) -> str:
    """Return the masked message of an error body, at most MAX_MESSAGE characters.

    Known shapes: {"message": str}, {"error": str}, {"error": {"message": str}}, {"detail": str or
    list}, the same within a choice, plain text, an HTML page, an empty body. Places in the server's
    source are left out.
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
    told = mask(found) if found else text
    return (_SOURCE.sub("", told).strip() or told)[:MAX_MESSAGE]


def _message(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("message", "error", "errors", "detail", "msg"):
            if value.get(key):
                return _message(value[key])
        choices = value.get("choices")
        for one in choices if isinstance(choices, list) else ():
            if isinstance(one, dict) and one.get("error"):
                return _message(one["error"])
    if isinstance(value, list) and value:
        return "; ".join(filter(None, map(_message, value))) or None
    return None


_TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ENTRY = re.compile(
    rf"['\"]type['\"]: ['\"](\w+)['\"], ['\"]loc['\"]: (\([^)]*\)|\[[^\]]*\]|{_TEXT})"
    rf"(?:, ['\"]msg['\"]: ({_TEXT}))?"
)
"""An error in pydantic's list. vLLM joins the places with dots, others show a tuple."""
_LINES = re.compile(r"^(\w[\w.]*)\n +(.*?) \[type=(\w+),", re.MULTILINE)
"""An error in pydantic's text of several lines."""
_UNKNOWN = "extra_forbidden"
_MISSING = "missing"
_NO_PLACE = re.compile(r"body|\w*Request")
"""Parts of a place that are no field: servers try several models of a request."""
_VALUE = re.compile(
    r"\bparameter=\w+, value=|\bmust (?:be|not|have|contain)\b|\bshould be\b"
    r"|\bcannot (?:be|contain)\b|\btoo (?:large|small|long|high|low|big|many)\b"
    r"|\bat (?:least|most)\b|\b(?:greater|less|larger|smaller|higher|lower) than\b|\bout of range\b"
    r"|\b(?:invalid|unsupported|illegal|bad) value\b|\bnot a valid\b|\bexceed"
    r"|\bonly the default\b",
    re.IGNORECASE,
)
"""Words that complain of a value. A server that does not know a field cannot judge its value."""
_FIELD = re.compile(
    r"extra inputs|extra_forbidden|\bwas unexpected\b"
    r"|\b(?:unknown|unrecogni[sz]ed|unexpected|unsupported) (?:request )?"
    r"(?:field|param|argument|keyword|property|key)",
    re.IGNORECASE,
)
"""Words that complain of a field, and win over those for values."""


class RefusedField(NamedTuple):
    """The name of a field that a refusal is about.

    `by_value`: the server knows the field and refuses its value.
    """

    name: str
    by_value: bool


class _Entry(NamedTuple):
    kind: str
    place: tuple[str, ...]
    told: str


def find_refused(message: str, names: Iterable[str]) -> RefusedField | None:
    """Return the first of the fields that a refusal names, or None.

    `names` are the fields that the request had. One in quotes, such as 'stop', must be in quotes or
    begin the message, since its name is a common word.
    """
    entries, bare = _entries(message), [(name.strip("'"), name) for name in names]
    if entries:
        for field, _ in bare:
            kinds = {one.kind for one in entries if one.place[:1] == (field,)} - {_MISSING}
            if kinds:
                return RefusedField(field, by_value=kinds != {_UNKNOWN})
        return None
    for field, name in bare:
        quoted = name != field
        word = rf"(?:['\"`]{field}['\"`]|^(?:HTTP \d+: )?{field}\b)" if quoted else rf"\b{field}\b"
        if re.search(word, message, re.IGNORECASE):
            by_value = _VALUE.search(message) and not _FIELD.search(message)
            return RefusedField(field, by_value=bool(by_value))
    return None


def shorten(message: str) -> str:
    """Return a refusal with pydantic's errors as "place: message", each once; else unchanged.

    Missing fields are left out if there are other errors: other kinds of requests lack them. So
    is an error whose message is cut off.
    """
    entries = _entries(message)
    if not entries:
        return message
    entries = [one for one in entries if one.kind not in (_MISSING, one.told)] or entries
    lines = [f"{'.'.join(one.place)}: {one.told}" if one.place else one.told for one in entries]
    status = re.match(r"HTTP \d+: ", message)
    return (status[0] if status else "") + "; ".join(dict.fromkeys(lines))


def _entries(message: str) -> list[_Entry]:
    found = [
        _Entry(kind, _place(place), told[1:-1] or kind)
        for kind, place, told in _ENTRY.findall(message)
    ]
    return found or [
        _Entry(kind, _place(place), told) for place, told, kind in _LINES.findall(message)
    ]


def _place(told: str) -> tuple[str, ...]:
    parts = re.findall(r"[\w-]+", told)
    return tuple(part for part in parts if not _NO_PLACE.fullmatch(part))
