"""Generate requests that offer tools: one function per kind of request."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from serve_eval.schema import CallMessage, Message, ResultMessage
from serve_eval.scorers._served_call import ServedExpectation
from serve_eval.tasks._tool_calls.everyday import (
    TOOLS,
    Wish,
    ask_without_need,
    call_of,
    draw_wishes,
    offer,
    offer_everyday,
)
from serve_eval.tasks._tool_calls.shapes import SHAPES


class AskedRequest(NamedTuple):
    """A request: its turns, its fields, what it expects, and the shape of its schema, if any."""

    turns: tuple[Message, ...]
    fields: Mapping[str, Any]
    expected: ServedExpectation
    shape: str = ""


Kind = Callable[[int, random.Random], AskedRequest]
"""Returns the request with a number. Numbers within texts make every prompt unique."""
RESULT = '{"status": "done", "value": 7}'
NO_CALL_RIGHT = "It is done, and the value is 7."


def _offer_all(choice: object = "auto", **more: Any) -> dict[str, Any]:
    return {"tools": offer_everyday(*TOOLS), "tool_choice": choice, **more}


def _say(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def _expect_call(wish: Wish, *, auto: bool) -> ServedExpectation:
    return ServedExpectation(wanted="call", calls=(wish.call,), auto=auto)


def _ask_auto(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Request {number}. Please {wish.text}.")
    return AskedRequest(turns, _offer_all(), _expect_call(wish, auto=True))


def _ask_no_tool(number: int, rng: random.Random) -> AskedRequest:
    question, right = ask_without_need(rng)
    turns = _say(f"Question {number}. {question}")
    return AskedRequest(
        turns, _offer_all(), ServedExpectation(wanted="no call", right=right, auto=True)
    )


def _ask_required(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Order {number}. Please {wish.text}.")
    return AskedRequest(turns, _offer_all("required"), _expect_call(wish, auto=False))


def _ask_none(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Note {number}. Say in one sentence how you would {wish.text}.")
    right = "I would ask a colleague to do it."
    return AskedRequest(turns, _offer_all("none"), ServedExpectation(wanted="no call", right=right))


def _ask_named(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    choice = {"type": "function", "function": {"name": wish.call.name}}
    turns = _say(f"Task {number}. Please {wish.text}.")
    return AskedRequest(turns, _offer_all(choice), _expect_call(wish, auto=False))


def _ask_parallel(number: int, rng: random.Random) -> AskedRequest:
    wishes = draw_wishes(rng, rng.randint(2, 3))
    text = f"List {number}. Do all of this at once, each with its tool: "
    turns = _say(text + "; ".join(wish.text for wish in wishes) + ".")
    calls = tuple(wish.call for wish in wishes)
    expected = ServedExpectation(
        wanted="call", calls=calls, least=len(calls), most=len(calls), auto=True
    )
    return AskedRequest(turns, _offer_all(), expected)


def _build_answered(number: int, wish: Wish) -> tuple[Message, ...]:
    """Return a wish with its call and the call's result."""
    one_id = f"call_{number}"
    asked = CallMessage(role="assistant", content="", tool_calls=(wish.call,), call_ids=(one_id,))
    return (
        *_say(f"Job {number}. Please {wish.text}."),
        asked,
        ResultMessage(role="tool", content=RESULT, call_id=one_id),
    )


def _ask_turns(number: int, rng: random.Random) -> AskedRequest:
    first, second = draw_wishes(rng, 2)
    turns = (
        *_build_answered(number, first),
        Message(role="assistant", content=NO_CALL_RIGHT),
        *_say(f"Thank you. Now, for job {number}, please {second.text}."),
    )
    return AskedRequest(turns, _offer_all(), _expect_call(second, auto=True))


def _ask_after_result(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    expected = ServedExpectation(wanted="no call", right=NO_CALL_RIGHT, auto=True)
    return AskedRequest(_build_answered(number, wish), _offer_all(), expected)


def _ask_thinking(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Puzzle {number}. Think about which tool fits, then {wish.text}.")
    fields = _offer_all(chat_template_kwargs={"enable_thinking": True})
    return AskedRequest(turns, fields, _expect_call(wish, auto=True))


def _ask_schemas(number: int, rng: random.Random) -> AskedRequest:
    shape = list(SHAPES)[number % len(SHAPES)]
    schema, value = SHAPES[shape](rng)
    call = call_of("submit_form", value)
    turns = _say(
        f"Form {number}. Call the tool submit_form with exactly these arguments: {call.arguments}"
    )
    fields = {"tools": [offer("submit_form", "Submit a form.", schema)], "tool_choice": "auto"}
    expected = ServedExpectation(wanted="call", calls=(call,), auto=True, exact=True)
    return AskedRequest(turns, fields, expected, shape)


TOOL_KINDS: Mapping[str, tuple[int, Kind]] = {
    "auto": (56, _ask_auto),
    "no_tool": (40, _ask_no_tool),
    "required": (24, _ask_required),
    "none": (20, _ask_none),
    "named": (24, _ask_named),
    "parallel": (24, _ask_parallel),
    "turns": (24, _ask_turns),
    "after_result": (16, _ask_after_result),
    "thinking": (16, _ask_thinking),
    "schemas": (72, _ask_schemas),
}
"""The number of requests of each kind, and what generates one."""
