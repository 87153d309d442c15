"""Mask personal fields and secrets in recorded bodies, before they are sent or kept. Pure.

A path such as `metadata.email` or `messages[*].name` names fields: `*` stands for any key, and
`[*]` for every item of a list. A masked text becomes ***, a masked number 0. The body keeps its
structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.masking import HIDDEN
from serve_eval.schema import RecordedBody
from serve_eval.secret_signs import hide

USUAL_FIELDS = ("user", "safety_identifier", "metadata.*")
"""Fields that name people, and that change no answer."""
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


def mask_body(body: RecordedBody, paths: Sequence[Steps]) -> tuple[RecordedBody, int]:
    """Return a body without the fields of the paths and without known forms of keys.

    The number counts the texts and numbers that were replaced.
    """
    count = _Count()
    fields: Any = body.fields
    for steps in paths:
        fields = _mask_at(fields, steps, count)
    fields = _hide_secrets(fields, count)
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
    return value


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


def _hide_secrets(value: Any, count: _Count) -> Any:
    """Return a value without the keys that known forms show in its texts."""
    if isinstance(value, Mapping):
        return {name: _hide_secrets(inner, count) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hide_secrets(inner, count) for inner in value]
    if isinstance(value, str) and (hidden := hide(value, HIDDEN)) != value:
        count.masked += 1
        return hidden
    return value
