"""Explain a field that a user's code gives one of our nouns although it has no such field."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.plugins import closest, extensions

_UNKNOWN = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_LACKS = re.compile(r"(\w+)\.__init__\(\) missing \d+ required (?:\S+ )?arguments?: (.*)")
_UNNAMED = re.compile(r"(\w+)\.__init__\(\) takes \d+ positional arguments? but (\d+)")
_OF_STRUCT = re.compile(r"(Unexpected keyword argument|Missing required argument) '(\w+)'")
"""The same of a msgspec.Struct, whose name is not said."""


@contextmanager
def explain_fields(error: type[ServeEvalError] = PlanError) -> Iterator[None]:
    """Raise `error`, with file and line, for a misspelt, missing or unnamed field of a noun."""
    try:
        yield
    except TypeError as raised:
        place, told = extensions.find_offered(raised), describe_fields(raised)
        if place is None or told is None:
            raise
        raise error(f"{place}: {told}") from raised


def describe_fields(error: BaseException) -> str | None:
    """Return what is wrong with the fields of a noun; None for any other error."""
    message = str(error) if isinstance(error, TypeError) else ""
    if (found := _OF_STRUCT.fullmatch(message)) is not None:
        return _describe_struct(error, found[2], lacks=found[1].startswith("Missing"))
    found = _UNKNOWN.search(message) or _LACKS.search(message) or _UNNAMED.search(message)
    noun = None if found is None else _find_noun(found[1])
    if found is None or noun is None or not is_dataclass(noun):
        return None
    if found.re is _LACKS:
        return f"{found[1]} needs {found[2]}"
    known = [field.name for field in fields(noun)]
    if found.re is _UNNAMED:
        return f"{found[1]} takes its fields by name: {found[1]}({known[0]}=...)"
    return f"{found[1]} has no field {found[2]!r}.{closest.nearest(found[2], known)}"


def _describe_struct(error: BaseException, field: str, *, lacks: bool) -> str | None:
    """Return what is wrong with a noun that is a Struct and that the raising function names."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    named = () if at is None else (*at.tb_frame.f_code.co_names, *at.tb_frame.f_code.co_freevars)
    meant = {
        one: noun.__struct_fields__
        for one in named
        if isinstance(noun := _find_noun(one), type)
        and issubclass(noun, msgspec.Struct)
        and (field in noun.__struct_fields__) is lacks
    }
    if not meant:
        return None
    which = " or ".join(meant)
    if lacks:
        return f"{which} needs {field!r}"
    known = dict.fromkeys(name for names in meant.values() for name in names)
    return f"{which} has no field {field!r}.{closest.nearest(field, known)}"


def _find_noun(name: str) -> Any:
    """Return a noun by its name, as serve_eval.schema is no package below this one; else None."""
    return getattr(sys.modules.get("serve_eval.schema"), name, None)
