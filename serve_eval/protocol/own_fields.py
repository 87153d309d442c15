"""Explain a field that a user's task gives one of our nouns although it has no such field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

from serve_eval import schema
from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry

_UNKNOWN = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_LACKS = re.compile(r"(\w+)\.__init__\(\) missing \d+ required (?:\S+ )?arguments?: (.*)")


@contextmanager
def explain_fields() -> Iterator[None]:
    """Raise PlanError, with file and line, for a misspelt or missing field of a noun."""
    try:
        yield
    except TypeError as error:
        place, told = extensions.find_external(error), _describe(str(error))
        if place is None or told is None:
            raise
        raise PlanError(f"{place}: {told}") from error


def _describe(message: str) -> str | None:
    """Return what is wrong with the fields of a noun; None for any other message."""
    found = _UNKNOWN.search(message) or _LACKS.search(message)
    noun = None if found is None else getattr(schema, found[1], None)
    if found is None or noun is None or not is_dataclass(noun):
        return None
    if found.re is _LACKS:
        return f"{found[1]} needs {found[2]}"
    known = [field.name for field in fields(noun)]
    return f"{found[1]} has no field {found[2]!r}.{registry.nearest(found[2], known)}"
