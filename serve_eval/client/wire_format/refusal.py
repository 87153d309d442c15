"""Read what a server refused: an unknown field, or a value of a field that it knows. Pure.

Servers that validate with pydantic list each error with its type, place and message, and often
repeat the request, so that a field's name alone proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

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
    found = [_entry(*one) for one in _ENTRY.findall(message)]
    return found or [
        _Entry(kind, _place(place), told) for place, told, kind in _LINES.findall(message)
    ]


def _entry(kind: str, place: str, told: str) -> _Entry:
    return _Entry(kind, _place(place), told[1:-1] or kind)


def _place(told: str) -> tuple[str, ...]:
    parts = re.findall(r"[\w-]+", told)
    return tuple(part for part in parts if not _NO_PLACE.fullmatch(part))
