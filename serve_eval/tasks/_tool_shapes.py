"""Generate tools and JSON schemas, each with an allowed value."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from serve_eval.schema import ToolCall

Schema = dict[str, Any]
Shape = Callable[[random.Random], tuple[Schema, dict[str, Any]]]
"""Returns the schema of an object, and an object that it allows."""

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island")
FOREIGN = ("Zürich", "Kraków", "São Paulo", "東京", "Αθήνα", "Ñandú", "Göteborg", "smile 😀 end")
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
DEPTH, WIDTH = 10, 60
"""Levels of the deep schema, and fields of the large one."""


def build_object(properties: Mapping[str, Schema], *required: str, **more: Any) -> Schema:
    """Return the schema of an object. Without names, every property is required."""
    needed = list(required or properties)
    return {"type": "object", "properties": dict(properties), "required": needed, **more}


def _build_nested(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    person = build_object({"name": TEXT, "age": WHOLE})
    order = build_object({"buyer": person, "items": {"type": "array", "items": person}})
    people = [{"name": rng.choice(WORDS), "age": rng.randint(1, 99)} for _ in range(3)]
    return order, {"buyer": people[0], "items": people[1:]}


def _build_defs(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    """Put definitions within definitions."""
    point = build_object({"x": {"$ref": "#/$defs/number"}, "y": {"$ref": "#/$defs/number"}})
    line = build_object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}})
    definitions = {"number": WHOLE, "point": point, "line": line}
    schema = build_object({"line": {"$ref": "#/$defs/line"}}, **{"$defs": definitions})
    ends = [{"x": rng.randint(-50, 50), "y": rng.randint(-50, 50)} for _ in range(2)]
    return schema, {"line": {"from": ends[0], "to": ends[1]}}


def _build_refs(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    """Refer to the schema of a tree from within."""
    node = build_object(
        {"label": TEXT, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}
    )
    schema = build_object({"tree": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}})
    leaf = {"label": rng.choice(WORDS), "children": []}
    inner = {"label": rng.choice(WORDS), "children": [leaf]}
    return schema, {"tree": {"label": rng.choice(WORDS), "children": [inner, leaf]}}


def _build_any_of(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    card = build_object({"kind": {"const": "card"}, "digits": TEXT}, additionalProperties=False)
    cash = build_object({"kind": {"const": "cash"}, "coins": WHOLE}, additionalProperties=False)
    schema = build_object(
        {"pay": {"anyOf": [card, cash]}, "note": {"anyOf": [TEXT, {"type": "null"}]}}
    )
    if rng.random() < 0.5:
        return schema, {"pay": {"kind": "cash", "coins": rng.randint(1, 9)}, "note": None}
    return schema, {"pay": {"kind": "card", "digits": "4242"}, "note": rng.choice(WORDS)}


def _build_enums(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    sizes, levels = ["s", "m", "x large"], [1, 2, 3]
    flags: list[Any] = [True, None, "maybe"]
    schema = build_object(
        {
            "size": {"type": "string", "enum": sizes},
            "level": {"type": "integer", "enum": levels},
            "flag": {"enum": flags},
        }
    )
    found = {"size": rng.choice(sizes), "level": rng.choice(levels), "flag": rng.choice(flags)}
    return schema, found


def _build_ranges(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    properties: dict[str, Schema] = {
        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
        "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "code": {"type": "string", "minLength": 3, "maxLength": 8},
        "days": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "maximum": 31},
            "minItems": 2,
            "maxItems": 4,
        },
    }
    found = {
        "hour": rng.randint(0, 23),
        "share": rng.choice([0.25, 0.5, 0.75]),
        "code": rng.choice(WORDS)[:8],
        "days": [rng.randint(1, 31) for _ in range(rng.randint(2, 4))],
    }
    return build_object(properties), found


def _build_closed(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    """Forbid further fields in one object, and give those of another a type."""
    limits: Schema = {"type": "object", "additionalProperties": WHOLE}
    schema = build_object(
        {"title": TEXT, "limits": limits, "memo": TEXT},
        "title",
        "limits",
        additionalProperties=False,
    )
    limited = {word: rng.randint(1, 99) for word in rng.sample(WORDS, 3)}
    return schema, {"title": rng.choice(WORDS), "limits": limited}


def _build_unicode(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    schema = build_object({"größe": WHOLE, "город": TEXT, "名前": TEXT})
    chosen = rng.sample(FOREIGN, 2)
    return schema, {"größe": rng.randint(1, 99), "город": chosen[0], "名前": chosen[1]}


def _build_escaped(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    """Use names and values that JSON must escape, or that hold the signs of JSON."""
    names = ('say "hi"', "a\\b", "x.y/z", "{curly}")
    values = ('she said "no"', "line one\nline two", "C:\\temp\\new", '{"a": [1, 2]}', "tab\there")
    return build_object(dict.fromkeys(names, TEXT)), {name: rng.choice(values) for name in names}


def _build_empty(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    return {"type": "object", "properties": {}, "additionalProperties": False}, {}


def _build_large(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    properties: dict[str, Schema] = {}
    for i in range(WIDTH):
        kind = rng.choice(("string", "integer", "boolean"))
        properties[f"{rng.choice(WORDS)}_{i}"] = {
            "type": kind,
            "description": f"Setting number {i} of the machine, as a {kind}.",
        }
    needed = rng.sample(sorted(properties), 6)
    made: dict[str, Any] = {"string": rng.choice(WORDS), "integer": rng.randint(1, 999)}
    found = {name: made.get(properties[name]["type"], True) for name in needed}
    return build_object(properties, *needed), found


def _build_deep(rng: random.Random) -> tuple[Schema, dict[str, Any]]:
    schema, found = build_object({"leaf": TEXT}), {"leaf": rng.choice(WORDS)}
    for level in range(DEPTH):
        schema = build_object({f"level{level}": schema}, additionalProperties=False)
        found = {f"level{level}": found}  # type: ignore[dict-item]
    return schema, found


SHAPES: Mapping[str, Shape] = {
    "nested objects": _build_nested,
    "nested $defs": _build_defs,
    "recursive $ref": _build_refs,
    "anyOf": _build_any_of,
    "enum": _build_enums,
    "ranges": _build_ranges,
    "additionalProperties": _build_closed,
    "unicode keys": _build_unicode,
    "escaped keys": _build_escaped,
    "empty object": _build_empty,
    "large": _build_large,
    "deep": _build_deep,
}


CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Perth", *FOREIGN[:6])
NAMES = ("Ada", "Björn", "Chen", "Dagmar", "Émile", "Farid")


class Wish(NamedTuple):
    """A request for one call, as the rest of a sentence, with the call."""

    text: str
    call: ToolCall


def call_of(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """Return a call, with its arguments as a model writes them."""
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _wish_weather(rng: random.Random) -> Wish:
    city, days = rng.choice(CITIES), rng.randint(2, 9)
    text = f"get the weather forecast for {city} for {days} days"
    return Wish(text, call_of("get_weather", {"city": city, "days": days}))


def _wish_mail(rng: random.Random) -> Wish:
    name, subject = rng.choice(NAMES), rng.choice(("lunch", "the report", "train times"))
    text = f"send a mail to {name} with the subject '{subject}'"
    return Wish(text, call_of("send_mail", {"to": name, "subject": subject}))


def _wish_room(rng: random.Random) -> Wish:
    room, people = rng.choice(("blue", "green", "attic")), rng.randint(2, 12)
    text = f"book the {room} room for {people} people"
    return Wish(text, call_of("book_room", {"room": room, "people": people}))


def _wish_timer(rng: random.Random) -> Wish:
    minutes = rng.randint(2, 59)
    return Wish(f"set a timer of {minutes} minutes", call_of("set_timer", {"minutes": minutes}))


def _wish_stock(rng: random.Random) -> Wish:
    item = rng.choice(("bolts", "lamps", "chairs", "batteries"))
    return Wish(f"look up how many {item} are in stock", call_of("count_stock", {"item": item}))


_ROOM: Schema = {"type": "string", "enum": ["blue", "green", "attic"]}
_MINUTES: Schema = {"type": "integer", "minimum": 1, "maximum": 600}
TOOLS: Mapping[str, tuple[str, Schema, Callable[[random.Random], Wish]]] = {
    "get_weather": (
        "Weather forecast for a city.",
        build_object({"city": TEXT, "days": WHOLE}),
        _wish_weather,
    ),
    "send_mail": ("Send a mail.", build_object({"to": TEXT, "subject": TEXT}), _wish_mail),
    "book_room": ("Book a room.", build_object({"room": _ROOM, "people": WHOLE}), _wish_room),
    "set_timer": ("Set a kitchen timer.", build_object({"minutes": _MINUTES}), _wish_timer),
    "count_stock": ("Count an item in the stock.", build_object({"item": TEXT}), _wish_stock),
}
"""The description, the schema and the wishes of each tool, by its name."""


def offer(name: str, description: str, schema: Schema) -> dict[str, Any]:
    """Return a tool as a request offers it."""
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def offer_everyday(*names: str) -> list[dict[str, Any]]:
    """Return these everyday tools as a request offers them."""
    return [offer(name, *TOOLS[name][:2]) for name in names]


def draw_wishes(rng: random.Random, count: int) -> list[Wish]:
    """Return wishes for different tools."""
    return [TOOLS[name][2](rng) for name in rng.sample(sorted(TOOLS), count)]


def ask_without_need(rng: random.Random) -> tuple[str, str]:
    """Return a question that needs no tool, and a right answer."""
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return rng.choice(
        (
            (f"What is {a} plus {b}? Answer with the number only.", str(a + b)),
            ("What is the opposite of 'hot'? Answer with one word.", "cold"),
            ("Which month follows March? Answer with one word.", "April"),
            (f"How many legs do {a} spiders have? Answer with the number only.", str(8 * a)),
            ("Write the word 'thanks' in French.", "merci"),
            ("Name one colour of a ripe banana.", "yellow"),
        )
    )
