"""Build a text that an ordinary regular expression matches."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

_CATEGORIES = {
    "DIGIT": r"\d",
    "WORD": r"\w",
    "SPACE": r"\s",
    "NOT_DIGIT": r"\D",
    "NOT_WORD": r"\W",
    "NOT_SPACE": r"\S",
}
_CHARACTERS = "x7 X_-.\t!"
"""If a pattern leaves the character open, the first of these that matches is used."""
LONGEST = 10_000
"""Largest number of characters of a generated text."""


def build_match(pattern: str) -> str | None:
    """Return a text made of the first alternatives and the fewest repeats, or None.

    None for a pattern that Python's own parser does not read or that has no such text. The caller
    checks whether the text matches.
    """
    try:
        return _of(_parse(pattern), {})
    except (re.error, RecursionError, OverflowError, KeyError, StopIteration):
        return None


def shortest(pattern: str) -> int:
    """Return the least length of a match; 0 if Python's own parser rejects the pattern."""
    try:
        return int(_parse(pattern).getwidth()[0])
    except (re.error, RecursionError, OverflowError):
        return 0


def _parse(pattern: str) -> Any:
    # Python has no other parser of the syntax.
    return importlib.import_module("re._parser").parse(pattern)


def _of(nodes: Iterable[tuple[Any, Any]], groups: dict[int, str]) -> str:
    return "".join(_node(str(kind), value, groups) for kind, value in nodes)


def _node(kind: str, value: Any, groups: dict[int, str]) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return next(c for c in _CHARACTERS if ord(c) != value)
        case "ANY":
            return _CHARACTERS[0]
        case "IN":
            return _in_set(value)
        case "GROUPREF":
            return groups[value]
        case _:
            return _match_nested(kind, value, groups)


def _match_nested(kind: str, value: Any, groups: dict[int, str]) -> str:
    """Return a text that matches a node with nodes inside; empty if it takes no character."""
    match kind:
        case "BRANCH":
            return _of(value[1][0], groups)
        case "SUBPATTERN":
            groups[value[0]] = found = _of(value[-1], groups)
            return found
        case "ATOMIC_GROUP":
            return _of(value, groups)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, once = int(value[0]), _of(value[2], groups)
            if least * len(once) > LONGEST:
                raise OverflowError("the text is too long")
            return once * least
        case "ASSERT":
            return _of(value[1], groups)
        case _:
            return ""


def _in_set(value: Sequence[tuple[Any, Any]]) -> str:
    """Return a character of a set, which may be negated."""
    negated = str(value[0][0]) == "NEGATE"
    items = value[1:] if negated else value
    named = "".join(
        chr(v if str(k) == "LITERAL" else v[0]) for k, v in items if str(k) != "CATEGORY"
    )
    return next(c for c in named + _CHARACTERS if any(_is(c, *item) for item in items) != negated)


def _is(character: str, kind: Any, value: Any) -> bool:
    """Return True if a character is in one item of a set."""
    match str(kind):
        case "LITERAL":
            return bool(ord(character) == value)
        case "RANGE":
            return bool(value[0] <= ord(character) <= value[1])
        case _:
            return (
                re.match(_CATEGORIES[str(value).removeprefix("CATEGORY_")], character) is not None
            )
