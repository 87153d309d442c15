"""Expected calls of a sample, and one right answer to it, from the rows of BFCL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from serve_eval.schema import Sample
from serve_eval.tasks._bfcl.categories import CATEGORIES, Wanted
from serve_eval.tasks._bfcl.literals import Language, write_literal


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
