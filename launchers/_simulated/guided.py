"""Make up answers that fit a schema, for guided decoding and tool calls.

A known answer of the form `{"tool_calls": [{"name": ..., "arguments": {...}}]}` is returned as
calls if its request offers tools, else as text. An unknown prompt gets a call of the first tool.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from serve_eval.launchers._http.answers import Call, Generated
from serve_eval.launchers._http.requests import Ask

_PLAIN: Mapping[str, object] = {
    "string": "a",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}
_LARGEST = 10_000
"""Maximum items or characters of a made-up value."""


def schema_of(response_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of a `response_format`; None if it has none.

    Accepts trtllm-serve's form and OpenAI's.
    """
    inner = response_format.get("json_schema")
    found = inner.get("schema", inner) if isinstance(inner, dict) else response_format.get("schema")
    return found if isinstance(found, dict) else None


def generate_text(schema: Mapping[str, Any]) -> str:
    """Return a small JSON text that a schema allows.

    The schema must have no pattern and allow something small. Returns null for a schema that needs
    itself or is not valid.
    """
    try:
        return json.dumps(_generate(schema, schema, frozenset({"#"})))
    except (AttributeError, RecursionError, TypeError, ValueError):
        return "null"


def _generate(schema: Any, root: Mapping[str, Any], within: frozenset[str]) -> object:
    """Return the smallest value of a schema.

    `within` are the references that lead here; the smallest value needs none of them again. Raises
    RecursionError for a schema that needs itself.
    """
    if not isinstance(schema, Mapping):
        return _PLAIN["string"]
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if isinstance(reference := schema.get("$ref"), str):
        if reference in within:
            raise RecursionError("the schema needs itself")
        return _generate(_resolve_reference(root, reference), root, within | {reference})
    if ways := schema.get("anyOf") or schema.get("oneOf"):
        return _first_fitting(ways, root, within)
    return _generate_type(schema, root, within)


def _first_fitting(ways: Sequence[Any], root: Mapping[str, Any], within: frozenset[str]) -> object:
    """Follow the first way that does not need itself."""
    for way in ways[:-1]:
        with suppress(RecursionError):
            return _generate(way, root, within)
    return _generate(ways[-1], root, within)


def _generate_type(
    schema: Mapping[str, Any], root: Mapping[str, Any], within: frozenset[str]
) -> object:
    """Return a small value of the schema's type."""
    match _type(schema):
        case "object":
            properties = schema.get("properties", {})
            return {
                name: _generate(properties.get(name), root, within)
                for name in schema.get("required", ())
            }
        case "array":
            return [
                _generate(schema.get("items"), root, within)
                for _ in range(_size(schema, "minItems", 0))
            ]
        case "string":
            return "a" * min(
                _size(schema, "minLength", 1), int(schema.get("maxLength", 1 + _LARGEST))
            )
        case "integer" | "number" as kind:
            return _number(schema, _PLAIN[kind])
        case kind:
            return _PLAIN.get(kind, "a")


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "object" if {"properties", "required"} & schema.keys() else "string")
    return str(kind[0] if isinstance(kind, list) and kind else kind)


def _size(schema: Mapping[str, Any], word: str, usual: int) -> int:
    return min(max(usual, int(schema.get(word, 0))), _LARGEST)


def _number(schema: Mapping[str, Any], usual: Any) -> object:
    """Return the usual number, or one near it within the bounds."""
    least = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + 1)
    most = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - 1)
    return min(max(usual, least), most)


def _resolve_reference(root: Mapping[str, Any], reference: str) -> object:
    """Return the part of the schema that a reference names."""
    found: object = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = (
            found.get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(found, Mapping)
            else None
        )
    return found


class _Call(msgspec.Struct):
    name: str
    arguments: Any = {}


class _Calls(msgspec.Struct, forbid_unknown_fields=True):
    tool_calls: list[_Call]


_decode = msgspec.json.Decoder(_Calls).decode


def split_calls(generated: Generated, ask: Ask) -> Generated:
    """Return the answer with its tool calls separated.

    The answer is unchanged unless the request offers tools and the whole answer calls some.
    """
    if not ask.tools or generated.finish_reason != "stop" or not generated.text:
        return generated
    try:
        found = _decode(generated.text).tool_calls
    except msgspec.DecodeError:
        return generated
    calls = [Call(call.name, json.dumps(call.arguments)) for call in found]
    return (
        generated._replace(text=None, finish_reason="tool_calls", calls=calls)
        if calls
        else generated
    )


def generate_call(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a call of the first tool, with arguments that its schema allows."""
    function = tools[0].get("function") or {}
    arguments = json.loads(generate_text(function.get("parameters") or {"type": "object"}))
    return json.dumps(
        {"tool_calls": [{"name": function.get("name", "unnamed"), "arguments": arguments}]}
    )
