"""Name the kind of a body without an answer, and find the message in it."""

from __future__ import annotations

import re
from collections.abc import Callable

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
