"""The answer calls the expected tools: one point per name and per argument."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from serve_eval.schema import Need, Response, Score, Scorer, ToolCall
from serve_eval.scorers._blocks import is_json, same
from serve_eval.scorers._expected import (
    FULL,
    grade_value,
    items_of,
    kind,
    place,
    place_items,
    value_of,
)
from serve_eval.scorers._served_call import read_arguments

NO_CALL = "no call"
"""Expectation of a case in which no tool must be called."""
NAMES, JSON = "right names", "arguments are JSON"
"""Parts of a score: whether the right tools were called, with any arguments, and whether the
arguments parse."""


def scorer(*, ordered: bool = False, other_arguments: bool = False, partial: bool = True) -> Scorer:
    """Return a scorer that gives the share of possible points.

    There is one point for the name of each expected call and one for each of its arguments. A call
    or an argument that was not expected adds a possible point. A case that gives a call no
    `arguments` accepts any.

    `ordered`: the first call is compared with the first, and so on, else each with the one that it
    has most in common with. `other_arguments`: further arguments cost nothing. Without `partial`
    there are full marks or none.
    """

    def score(expected: object, response: Response) -> Score:
        wanted, made = _list_wanted(expected), list(response.tool_calls)
        pairs = _pair(wanted, made, ordered=ordered)
        had = sum(_points(want, call) for want, call in pairs)
        most = sum(1 + len(want.get("arguments") or {}) for want in wanted) + len(made) - len(pairs)
        most += 0 if other_arguments else sum(_count_unexpected(want, call) for want, call in pairs)
        value = had / most if most else 1.0
        parts = {
            FULL: float(value == 1.0),
            NAMES: float(
                sorted(want["name"] for want in wanted) == sorted(call.name for call in made)
            ),
            JSON: float(all(read_arguments(call) is not None for call in made)),
        }
        answer = json.dumps([{"name": call.name, "arguments": call.arguments} for call in made])
        mode = _mode(wanted, made, parts, ordered=ordered)
        return grade_value(value if partial else float(value == 1.0), answer, parts, mode=mode)

    def answers(expected: object) -> tuple[str, str]:
        calls = [
            {"name": want["name"], "arguments": want.get("arguments") or {}}
            for want in _list_wanted(expected)
        ]
        if not calls:
            return "I need no tool for that.", as_text([{"name": "any", "arguments": {}}])
        return as_text(calls), "I need no tool for that."

    return Scorer(
        version=1,
        score=score,
        answers=answers,
        problems=_problems,
        requires=frozenset({Need.TOOLS}),
    )


def as_text(calls: Sequence[Mapping[str, object]]) -> str:
    """Return calls as a text, in the form that the simulated endpoint returns as calls."""
    return json.dumps({"tool_calls": calls})


def _list_wanted(expected: object) -> list[Any]:
    return [] if value_of(expected) == NO_CALL else list(items_of(expected))


def _problems(expected: object) -> list[str]:
    if value_of(expected) == NO_CALL:
        return []
    if not items_of(expected):
        return [f"{place(expected)} is an empty list: write `{NO_CALL}` if no tool must be called"]
    return [
        problem for where, one in place_items(expected) for problem in _call_problems(where, one)
    ]


def _call_problems(where: str, one: object) -> list[str]:
    if not isinstance(one, Mapping) or not isinstance(one.get("name"), str) or not one["name"]:
        told = (
            "must be a call, such as {name: weather, arguments: {city: Paris}}, not"
            f" {kind(one)}"
        )
        return [f"{where} {told}"]
    wrong = [
        f"{where} has an unknown key: {key}" for key in one if key not in ("name", "arguments")
    ]
    arguments = one.get("arguments")
    if arguments is not None and not (isinstance(arguments, dict) and is_json(arguments)):
        wrong.append(
            f"{where}.arguments must be a mapping of names to values, not {kind(arguments)}"
        )
    return wrong


def _mode(
    wanted: Sequence[Any], made: Sequence[ToolCall], parts: Mapping[str, float], *, ordered: bool
) -> str:
    """Return the way in which calls without full marks failed."""
    if not made:
        return "no tool called"
    if not wanted:
        return "a tool called"
    if not parts[JSON]:
        return "arguments are no JSON"
    if not parts[NAMES]:
        return "other tools"
    if ordered and [want["name"] for want in wanted] != [call.name for call in made]:
        return "another order"
    return "other arguments"


def _pair(
    wanted: Sequence[Any], made: Sequence[ToolCall], *, ordered: bool
) -> list[tuple[Any, ToolCall]]:
    """Return each expected call with the call of the same name that answers it.

    A call answers one expected call.
    """
    if ordered:
        return [
            (want, call)
            for want, call in zip(wanted, made, strict=False)
            if want["name"] == call.name
        ]
    alike = [
        (-_points(want, call), _count_unexpected(want, call), i, k)
        for i, want in enumerate(wanted)
        for k, call in enumerate(made)
        if want["name"] == call.name
    ]
    pairs: dict[int, int] = {}
    for _, _, i, k in sorted(alike):
        if i not in pairs and k not in pairs.values():
            pairs[i] = k
    return [(wanted[i], made[k]) for i, k in pairs.items()]


def _points(want: Mapping[str, Any], call: ToolCall) -> int:
    given = read_arguments(call) or {}
    return 1 + sum(
        name in given and same(given[name], value)
        for name, value in (want.get("arguments") or {}).items()
    )


def _count_unexpected(want: Mapping[str, Any], call: ToolCall) -> int:
    """Return the number of unexpected arguments; arguments that are not JSON count as one."""
    if want.get("arguments") is None:
        return 0
    given = read_arguments(call)
    return 1 if given is None else len(given.keys() - want["arguments"].keys())
