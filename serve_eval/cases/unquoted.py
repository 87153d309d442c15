"""Find values of a case that YAML reads as another kind than the text they may be meant as."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.cases.case_problems import scalar_paths

Keys = tuple[Any, ...]


def list_in_prompt(
    content: Mapping[str, Any], written: Mapping[Keys, str], path: Keys
) -> dict[Keys, str]:
    """Return a problem for each value of the input that the prompt would show differently.

    `content` is the case at `path` of a document, and `written` is that of the document.
    """
    found = {}
    for keys, reading, value in _read(content, "input", written, path):
        if value is not None:
            found[keys] = f"{reading}, so the prompt would show it differently: put it in quotes"
    return found


def list_expected(
    content: Mapping[str, Any], written: Mapping[Keys, str], path: Keys
) -> dict[Keys, str]:
    """Return a problem for each expected value that is not written as JSON would write it.

    It matters to a scorer that takes any value: true, 3.1 and null are unambiguous, while
    yes, 3.10 and ~ may be texts.
    """
    found = {}
    for keys, reading, value in _read(content, "expected", written, path):
        if not isinstance(value, float) or math.isfinite(value):
            plain = json.dumps(value)
            found[keys] = f"{reading}: put it in quotes for a text, or write {plain} for that value"
    return found


def _read(
    content: Mapping[str, Any], key: str, written: Mapping[Keys, str], path: Keys
) -> Iterator[tuple[Keys, str, Any]]:
    """Yield the keys of each such value, a sentence on how YAML reads it, and the value read."""
    if key not in content:
        return
    for inner in scalar_paths(content[key]):
        keys = (key, *inner)
        if (text := written.get((*path, *keys))) is not None:
            value, named = (
                functools.reduce(operator.getitem, keys, content),
                ".".join(map(str, keys)),
            )
            yield keys, f"{named}: YAML reads {text or 'no value'} as {_kind(value)}", value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "nothing" if value is None else "a number"
