"""Find JSON in answers, and compare values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from serve_eval.scorers._fences import find_blocks

NOTHING = object()
"""Result if there is no JSON, since `null` is JSON."""


def find_json(
    text: str, *, fenced: bool = True, parse_float: Callable[[str], float] | None = None
) -> Any:
    """Return the JSON of a text or of its last fenced block with JSON; NOTHING if there is none.

    `parse_float` is that of json.loads.
    """
    blocks = reversed([block.code for block in find_blocks(text)]) if fenced else ()
    for candidate in (text, *blocks):
        try:
            return json.loads(candidate, parse_float=parse_float)
        except (ValueError, RecursionError):
            continue
    return NOTHING


def same(one: object, other: object) -> bool:
    """Return True if two JSON values are equal.

    1 and 1.0 are, 1 and true are not; the order of keys does not matter.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def is_json(value: object) -> bool:
    """Return True if a value of a YAML file can be written as JSON."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(is_json, value))
    return (
        value is None
        or isinstance(value, str | int)
        or (isinstance(value, float) and value - value == 0.0)
    )
