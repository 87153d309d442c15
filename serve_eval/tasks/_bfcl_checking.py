"""Check calls against the expected ones, as BFCL's checker of abstract syntax does.

The rules are those of the leaderboard's `ast_checker`, written from its behaviour. They compare
types as Python does, so that true is no integer, and an integer is a right float. Strings are equal
without capitals, spaces and some punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from serve_eval.schema import Sample
from serve_eval.tasks._bfcl_literals import (
    JAVA,
    JAVASCRIPT,
    Language,
    read_java,
    read_javascript,
    write_literal,
)
from serve_eval.tasks._bfcl_rows import CATEGORIES, Wanted


class ExpectedCall(Struct, frozen=True):
    """A call: its function, and the values that each argument may have.

    "" among the values of an argument says that it may be left out. `types` has the declared type
    of each parameter, and that of its items ("" for none).
    """

    name: str
    values: dict[str, list[Any]]
    types: dict[str, tuple[str, str]]
    required: list[str]
    language: Language = "python"


class Expectation(Struct, frozen=True):
    """The right answer to a question: these calls, no call, or any call."""

    wanted: Wanted
    calls: tuple[ExpectedCall, ...] = ()


_decode = msgspec.json.Decoder(Expectation).decode


def read_expectation(sample: Sample) -> Expectation:
    """Return what a sample expects."""
    return _decode(sample.target)


def expect_call(
    functions: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], category: str, *, dots: bool
) -> ExpectedCall:
    """Return the expected call of a row.

    `answer` has one function with the values of its arguments. Rows of a simple category have one
    function, whose name counts if the answer has another one. Without `dots` names have underscores
    in their place. Raises KeyError for a function that the row does not offer.
    """
    [(name, values)] = answer.items()
    offered = [
        one
        for one in functions
        if CATEGORIES[category].kind == "simple" or category == "live_simple" or one["name"] == name
    ]
    if not offered:
        raise KeyError(name)
    function = offered[0]
    parameters = function["parameters"]
    return ExpectedCall(
        name=function["name"] if dots else underscore(function["name"]),
        values=dict(values),
        types={
            key: (str(value.get("type", "")), str((value.get("items") or {}).get("type", "")))
            for key, value in parameters["properties"].items()
        },
        required=list(parameters["required"]),
        language=CATEGORIES[category].language,
    )


def underscore(name: str) -> str:
    """Return the name of a function as OpenAI's API allows it."""
    return re.sub(r"\.", "_", name)


def fill(call: ExpectedCall) -> dict[str, Any]:
    """Return right arguments of a call: the first value of each that may not be left out."""
    found = {}
    for name, values in call.values.items():
        if "" in values and name not in call.required:
            continue
        value = next((one for one in values if one != ""), "")
        kind, items = call.types.get(name, ("", ""))
        found[name] = write_literal(_fill_value(value, kind, items), kind, items, call.language)
    return found


def _fill_value(value: Any, kind: str, items: str) -> Any:
    """Return a value of the answers with one value for each key of its objects."""
    if isinstance(value, dict) and kind in ("dict", "HashMap"):
        return {
            key: next((one for one in values if one != ""), "")
            for key, values in value.items()
            if "" not in values
        }
    if isinstance(value, list) and items == "dict":
        return [_fill_value(item, "dict", "") for item in value]
    return value


_PYTHON: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_TYPES: Mapping[Language, Mapping[str, type]] = {
    "python": _PYTHON,
    "java": JAVA,
    "javascript": JAVASCRIPT,
}
_NESTED = ("array", "tuple", "Array", "ArrayList")
"""Types whose items have a declared type."""
_DROPPED = str.maketrans("", "", " ,./-_*^")
LEFT_OUT = ""
"""Among the values of an argument: it may be left out."""


class MadeCall(NamedTuple):
    """A call that an answer makes, with its arguments as Python values."""

    name: str
    arguments: Mapping[Any, Any]


class CallError(StrEnum):
    """The first thing that is wrong with the calls of an answer."""

    NONE = "no call"
    UNREADABLE = "unreadable call"
    NEEDLESS = "a needless call"
    COUNT = "another number of calls"
    FUNCTION = "another function"
    MISSING = "a missing argument"
    UNEXPECTED = "an unexpected argument"
    TYPE = "another type"
    VALUE = "another value"


def check_calls(expected: Sequence[ExpectedCall], made: Sequence[MadeCall]) -> CallError | None:
    """Return what is wrong with the calls, in any order (None: nothing).

    Each expected call takes the first call left that fits it, as upstream does, even if another
    choice would leave more of them matched.
    """
    if len(made) != len(expected):
        return CallError.COUNT if made else CallError.NONE
    left = list(made)
    for one in expected:
        errors = []
        for place, call in enumerate(left):
            if (error := check_call(one, call)) is None:
                del left[place]
                break
            errors.append(error)
        else:
            return max(errors, key=list(CallError).index)
    return None


def check_call(expected: ExpectedCall, call: MadeCall) -> CallError | None:
    """Return what is wrong with one call."""
    if call.name != expected.name:
        return CallError.FUNCTION
    given = call.arguments
    if any(name not in given for name in expected.required):
        return CallError.MISSING
    for name, value in given.items():
        if name not in expected.types or name not in expected.values:
            return CallError.UNEXPECTED
        allowed, (kind, items) = expected.values[name], expected.types[name]
        error = _check_value(value, allowed, kind, items, expected.language)
        if error is not None:
            return error
    if any(name not in given and LEFT_OUT not in v for name, v in expected.values.items()):
        return CallError.MISSING
    return None


def _check_value(
    value: Any, allowed: Sequence[Any], kind: str, items: str, language: Language
) -> CallError | None:
    types, nested = _TYPES[language], kind in _NESTED
    wanted, inner = types.get(kind), types.get(items) if nested else None
    if wanted is None or (nested and inner is None):
        return CallError.TYPE
    try:
        value = _convert(value, kind, items, language)
    except (TypeError, ValueError, OverflowError):
        return CallError.TYPE
    first = _first_type(allowed)
    if type(value) is wanted:
        if inner is not None and not any(_items_fit(value, one, inner) for one in allowed):
            return CallError.TYPE
    elif first is None or type(value) is not first:
        return CallError.TYPE
    # A value of the type of the answers, where they have another one, is a variable's name.
    variable = type(value) is not wanted or first not in (None, wanted)
    fits = value in allowed if variable else _fits(value, allowed, wanted, inner)
    return None if fits else CallError.VALUE


def _convert(value: Any, kind: str, items: str, language: Language) -> Any:
    """Return a tuple as a list and an integer as a float, where these are declared.

    Values of Java and JavaScript are read. Raises TypeError for one that is no text, and ValueError
    or OverflowError for one that is out of range.
    """
    if language != "python":
        if type(value) is not str:
            raise TypeError("no text")
        read = read_java if language == "java" else read_javascript
        return read(value, kind, items if kind in _NESTED else "")
    if kind == "tuple" and type(value) is tuple:
        return list(value)
    return float(value) if kind == "float" and type(value) is int else value


def _first_type(allowed: Sequence[Any]) -> type | None:
    return next((type(one) for one in allowed if one != LEFT_OUT), None)


def _items_fit(value: Any, allowed: Any, inner: type) -> bool:
    """Return True if the items have the declared type, or that of an allowed list's items."""
    if not isinstance(allowed, list):
        return True
    first = _first_type(allowed)
    return all(type(item) is inner or (first is not None and type(item) is first) for item in value)


def _fits(value: Any, allowed: Sequence[Any], wanted: type, inner: type | None) -> bool:
    if wanted is dict:
        return any(_object_fits(value, one) for one in allowed)
    if wanted is list and inner is dict:
        return any(_objects_fit(value, one) for one in allowed)
    if wanted is str:
        return _plain(value) in [_plain(one) for one in allowed if isinstance(one, str)]
    if wanted is list:
        plain = [_plain(item) for item in value]
        return any(plain == [_plain(item) for item in one] for one in allowed if _is_listed(one))
    return value in allowed


def _plain(value: Any) -> Any:
    """Return a string without capitals, spaces and punctuation; any other value as it is."""
    if not isinstance(value, str):
        return value
    return value.translate(_DROPPED).lower().replace("'", '"')


def _is_listed(value: Any) -> bool:
    return isinstance(value, list | str)


def _object_fits(value: Any, allowed: Any) -> bool:
    """Return True if each key has one of its values and no other is missing."""
    if not isinstance(allowed, dict) or not isinstance(value, dict):
        return False
    for key, item in value.items():
        if key not in allowed or not _is_listed(allowed[key]):
            return False
        if _plain(item) not in [_plain(one) for one in allowed[key]]:
            return False
    return all(
        key in value or (_is_listed(values) and LEFT_OUT in values)
        for key, values in allowed.items()
    )


def _objects_fit(value: Sequence[Any], allowed: Any) -> bool:
    """Return True if the objects fit those of the answer, one by one."""
    if not _is_listed(allowed) or len(value) != len(allowed):
        return False
    return all(_object_fits(one, other) for one, other in zip(value, allowed, strict=True))
