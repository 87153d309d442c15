"""Everyday tools with questions that need one of them, and questions that need none."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from serve_eval.schema import ToolCall
from serve_eval.tasks._tool_calls.shapes import FOREIGN, TEXT, WHOLE, Schema, build_object

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
