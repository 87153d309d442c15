"""Describe types of Python as JSON Schema, for editors and for programs that read our files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def describe_type(kind: Any) -> Schema:
    """Return the schema of a type. A type that JSON Schema cannot express accepts anything."""
    schema = msgspec.json.schema(kind, schema_hook=_accept_anything)
    for one in (schema, *schema.get("$defs", {}).values()):
        if "description" in one:
            one["description"] = _unwrap(one["description"])
    return schema


def name_schema(schema: Mapping[str, Any], kind: str, version: int, title: str) -> Schema:
    """Return a whole schema with its dialect, its name and its version."""
    head = {"$schema": DIALECT, "$id": f"urn:serve-eval:{kind}:{version}", "title": title}
    return {**head, **{name: value for name, value in schema.items() if name not in head}}


def close_object(properties: Mapping[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    """Return the schema of a mapping that refuses other keys."""
    closed: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        closed["required"] = list(required)
    return {**closed, "additionalProperties": False}


def _accept_anything(kind: type) -> Schema:
    if kind is object:
        return {"description": "Any value."}
    raise NotImplementedError


def _unwrap(docstring: str) -> str:
    """Return a docstring with one line per paragraph."""
    paragraphs = textwrap.dedent(f"    {docstring}").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
