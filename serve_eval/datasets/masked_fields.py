"""Mask personal fields and secrets in recorded bodies, before they are sent or kept. Pure.

A path such as `metadata.email` or `messages[*].name` names fields: `*` matches any key, `[*]` every
item of a list. Paths also reach into strings that contain JSON, such as the arguments of a tool
call. A masked string becomes ***, a masked number 0; the structure of the body is unchanged.
Patterns mask all their matches in strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.errors import PlanError
from serve_eval.masking import HIDDEN
from serve_eval.schema import RecordedBody
from serve_eval.secret_signs import hide

USUAL_FIELDS = ("user", "safety_identifier", "metadata.*", "api_key", "extra_headers.*")
"""Fields that identify people or hold keys, and do not affect answers."""
ITEMS = "[*]"
_STEP = re.compile(r"(?:^|\.)(\*|[A-Za-z_][\w-]*)|(\[\*\]|\[\d+\])")
Steps = tuple[str, ...]


def read_paths(paths: Iterable[str]) -> tuple[Steps, ...]:
    """Return the steps of each path. Raises PlanError for a text that is no path."""
    found, wrong = [], []
    for path in paths:
        steps = tuple(one[1] or one[2] for one in _STEP.finditer(path))
        whole = "".join(one[0] for one in _STEP.finditer(path)) == path
        if steps and whole and not path.startswith("."):
            found.append(steps)
        else:
            wrong.append(f"mask_fields: {path!r} is not a path such as metadata.email")
    if wrong:
        raise PlanError(wrong, hint="Write keys with dots, and lists as messages[*].content")
    return tuple(found)


def read_patterns(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return compiled regular expressions. Raises PlanError for an invalid or an empty one."""
    found, wrong = [], []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            wrong.append(f"mask_patterns: {pattern!r} is no regular expression: {error}")
    if any(one.match("") for one in found):
        wrong.append("mask_patterns: a pattern matches the empty text")
    if wrong:
        raise PlanError(wrong)
    return tuple(found)


def mask_body(
    body: RecordedBody, paths: Sequence[Steps], patterns: Sequence[re.Pattern[str]] = ()
) -> tuple[RecordedBody, int]:
    """Return a body with these fields, pattern matches and known forms of keys masked.

    The number counts the replaced strings and numbers.
    """
    count = _Count()
    fields: Any = body.fields
    for steps in paths:
        fields = _mask_at(fields, steps, count)
    fields = _hide_secrets(fields, patterns, count)
    return RecordedBody(route=body.route, fields=fields), count.masked


class _Count:
    """Count what was replaced."""

    masked = 0


def _mask_at(value: Any, steps: Steps, count: _Count) -> Any:
    """Return a value with what a path leads to replaced."""
    if not steps:
        return _blank(value, count)
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping):
        chosen = value.keys() if step == "*" else {step} & value.keys()
        return {
            name: _mask_at(inner, rest, count) if name in chosen else inner
            for name, inner in value.items()
        }
    if isinstance(value, list) and step.startswith("["):
        every = step == ITEMS
        return [
            _mask_at(inner, rest, count) if every or step == f"[{place}]" else inner
            for place, inner in enumerate(value)
        ]
    return _mask_inside(value, steps, count) if isinstance(value, str) else value


def _mask_inside(text: str, steps: Steps, count: _Count) -> str:
    """Return a JSON string with the values at a path masked; other strings are unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        opened = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    masked = _mask_at(opened, steps, count)
    return text if masked == opened else msgspec.json.encode(masked).decode()


def _blank(value: Any, count: _Count) -> Any:
    """Return a value of the same form without its texts and numbers."""
    if isinstance(value, Mapping):
        return {name: _blank(inner, count) for name, inner in value.items()}
    if isinstance(value, list):
        return [_blank(inner, count) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    count.masked += 1
    return HIDDEN if isinstance(value, str) else 0


def _hide_secrets(value: Any, patterns: Sequence[re.Pattern[str]], count: _Count) -> Any:
    """Return a value with pattern matches and known forms of keys masked."""
    if isinstance(value, Mapping):
        return {name: _hide_secrets(inner, patterns, count) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hide_secrets(inner, patterns, count) for inner in value]
    if not isinstance(value, str):
        return value
    hidden = hide(value, HIDDEN)
    for pattern in patterns:
        hidden = pattern.sub(HIDDEN, hidden)
    count.masked += hidden != value
    return hidden
