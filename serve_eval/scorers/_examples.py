"""Generate a text that a regular expression matches, or a value that a JSON schema allows."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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


_LARGEST = 10_000
"""Largest number of items or characters of a generated value."""


def generate_instance(
    schema: object, root: object = None, within: frozenset[str] = frozenset({"#"})
) -> Any:
    """Return a value that the schema itself names, else the smallest of its type.

    Such a value is its const, example, default or enum. The caller checks whether it is valid.
    `within` are the references that lead here: the smallest value needs none of them again. Raises
    RecursionError for a schema that refers to itself without end, OverflowError for a value of
    enormous size.
    """
    if not isinstance(schema, Mapping):
        return None
    root = schema if root is None else root

    def inner(one: object) -> Any:
        return generate_instance(one, root, within)

    if (given := _find_given(schema)) is not None:
        return given[0]
    if isinstance(reference := schema.get("$ref"), str):
        if reference in within:
            raise RecursionError("the schema refers to itself")
        return generate_instance(_resolve_reference(root, reference), root, within | {reference})
    for key in ("oneOf", "anyOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            rest = {name: value for name, value in schema.items() if name != key}
            ways = [{**rest, **one} if isinstance(one, Mapping) else rest for one in schema[key]]
            return _first(ways, inner)
    if isinstance(schema.get("allOf"), list):
        return inner(_together(schema))
    return _of_type(schema, inner)


def _find_given(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return a list that begins with a value that the schema names; None if it names none."""
    if "const" in schema:
        return [schema["const"]]
    if "default" in schema and schema["default"] in schema.get("enum", [schema["default"]]):
        return [schema["default"]]
    return next(
        (
            schema[key]
            for key in ("examples", "enum")
            if isinstance(schema.get(key), list) and schema[key]
        ),
        None,
    )


def _together(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the parts of its allOf; mappings that two of them share are merged."""
    together: dict[str, Any] = {name: value for name, value in schema.items() if name != "allOf"}
    for one in schema["allOf"]:
        for name, value in one.items() if isinstance(one, Mapping) else ():
            both = name in together and isinstance(value, dict) and isinstance(together[name], dict)
            together[name] = {**together[name], **value} if both else value
    return together


def _first(schemas: Sequence[object], inner: Callable[[object], Any]) -> Any:
    """Return a value of the first schema without an endless reference."""
    for one in schemas[:-1]:
        with suppress(RecursionError):
            return inner(one)
    return inner(schemas[-1])


def _of_type(schema: Mapping[str, Any], inner: Any) -> Any:
    if max(schema.get("minItems", 0), schema.get("minLength", 0)) > _LARGEST:
        raise OverflowError("the value is too large")
    match _type(schema):
        case "object":
            properties = schema.get("properties", {})
            return {
                name: inner(properties.get(name, {})) for name in (*schema.get("required", ()),)
            }
        case "array":
            first = list(schema.get("prefixItems", ()))
            rest = [schema.get("items", {})] * (int(schema.get("minItems", 0)) - len(first))
            return [inner(one) for one in (*first, *rest)]
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum"))
            most = schema.get("maximum", schema.get("exclusiveMaximum"))
            step = schema.get("multipleOf", 1)
            if least is not None:
                found = math.ceil(least / step) * step
                return found + step if found == schema.get("exclusiveMinimum") else found
            return 0 if most is None or most > 0 else math.floor(most / step) * step - step
        case "string":
            text = build_match(str(schema["pattern"])) if "pattern" in schema else None
            return (text or "").ljust(int(schema.get("minLength", 0)), "x")
        case "boolean":
            return True
        case _:
            return None


def _type(schema: Mapping[str, Any]) -> object:
    """Return the given type, or the type that the other keywords imply."""
    told = schema.get("type")
    if told is not None:
        return told[0] if isinstance(told, list) and told else told
    about = {
        "properties": "object",
        "required": "object",
        "items": "array",
        "pattern": "string",
        "minimum": "number",
    }
    return next((kind for word, kind in about.items() if word in schema), None)


def _resolve_reference(root: object, reference: str) -> object:
    """Return what a reference within the schema refers to."""
    found = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = (
            found.get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(found, Mapping)
            else None
        )
    return found
