"""Generate requests with a `response_format`: one function per kind of request."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from serve_eval.schema import Message
from serve_eval.scorers._served_call import ServedExpectation
from serve_eval.tasks._tool_calls.everyday import NAMES
from serve_eval.tasks._tool_calls.shapes import SHAPES, WORDS, Schema
from serve_eval.tasks._tool_calls.tooled import AskedRequest, Kind

ANIMALS = ("cat", "dog", "owl")
GRAMMAR = """root ::= animal " " digit digit
animal ::= "cat" | "dog" | "owl"
digit ::= [0-9]
"""
BEGIN, END = "<answer>", "</answer>"


def _build_request(
    text: str, form: Mapping[str, Any], expected: ServedExpectation, shape: str = ""
) -> AskedRequest:
    turns = (Message(role="user", content=text),)
    return AskedRequest(turns, {"response_format": dict(form)}, expected, shape)


def _ask_json_object(number: int, rng: random.Random) -> AskedRequest:
    found = {"name": rng.choice(NAMES), "age": rng.randint(1, 99)}
    text = f"Card {number}. Write {found['name']}, aged {found['age']}, as a JSON object."
    schema = json.dumps({"type": "object"})
    expected = ServedExpectation(wanted="json", right=json.dumps(found), schema=schema)
    return _build_request(text, {"type": "json_object"}, expected)


def _copy_value(
    opening: str, number: int, rng: random.Random
) -> tuple[str, Schema, ServedExpectation, str]:
    shape = list(SHAPES)[number % len(SHAPES)]
    schema, value = SHAPES[shape](rng)
    right = json.dumps(value, ensure_ascii=False)
    expected = ServedExpectation(wanted="json", right=right, exact=True, schema=json.dumps(schema))
    return f"{opening} {number}. Answer with exactly this JSON: {right}", schema, expected, shape


def _ask_json_schema(number: int, rng: random.Random) -> AskedRequest:
    text, schema, expected, shape = _copy_value("Copy", number, rng)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return _build_request(text, form, expected, shape)


def _ask_json_trtllm(number: int, rng: random.Random) -> AskedRequest:
    text, schema, expected, shape = _copy_value("Sheet", number, rng)
    return _build_request(text, {"type": "json", "schema": schema}, expected, shape)


def _ask_regex(number: int, rng: random.Random) -> AskedRequest:
    what, pattern, right = rng.choice(
        (
            ("a date in the form 2024-05-31", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "2024-05-31"),
            ("a plate such as AB-1234", "[A-Z]{2}-[0-9]{4}", "KX-2048"),
            ("a colour and a number such as red 123", "(?:red|green|blue) [0-9]{3}", "blue 512"),
        )
    )
    expected = ServedExpectation(wanted="text", right=right, pattern=pattern)
    form = {"type": "regex", "regex": pattern}
    return _build_request(f"Slip {number}. Write {what}, and nothing else.", form, expected)


def _ask_ebnf(number: int, rng: random.Random) -> AskedRequest:
    right = f"{rng.choice(ANIMALS)} {rng.randint(10, 99)}"
    pattern = f"(?:{'|'.join(ANIMALS)}) [0-9][0-9]"
    expected = ServedExpectation(wanted="text", right=right, pattern=pattern)
    text = f"Tag {number}. Write an animal (cat, dog or owl) and two digits, and nothing else."
    return _build_request(text, {"type": "ebnf", "ebnf": GRAMMAR}, expected)


def _ask_structural_tag(number: int, rng: random.Random) -> AskedRequest:
    shape = ("enum", "ranges", "nested objects", "unicode keys")[number % 4]
    schema, value = SHAPES[shape](rng)
    right = f"{BEGIN}{json.dumps(value, ensure_ascii=False)}{END}"
    content = {"type": "json_schema", "json_schema": schema}
    form = {"type": "structural_tag", "format": _build_tag(content)}
    expected = ServedExpectation(
        wanted="text", right=right, pattern=f"{BEGIN}(.*){END}", schema=json.dumps(schema)
    )
    word = rng.choice(WORDS)
    return _build_request(
        f"Box {number} {word}. Answer with exactly this: {right}", form, expected, shape
    )


def _build_tag(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tag", "begin": BEGIN, "content": content, "end": END}


GUIDED_KINDS: Mapping[str, tuple[int, Kind]] = {
    "json_object": (16, _ask_json_object),
    "json_schema": (36, _ask_json_schema),
    "json_trtllm": (12, _ask_json_trtllm),
    "regex": (12, _ask_regex),
    "ebnf": (8, _ask_ebnf),
    "structural_tag": (8, _ask_structural_tag),
}
"""The number of requests of each kind, and what generates one."""
