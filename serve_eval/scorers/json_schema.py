"""The answer is JSON that is valid under a schema, or equals a given value, or both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import Response, Score, Scorer
from serve_eval.scorers._blocks import NOTHING, find_json, is_json, same
from serve_eval.scorers._examples import generate_instance
from serve_eval.scorers._expected import find_wrong, grade_value, kind, place, value_of
from serve_eval.scorers._validation import check_schema, is_surely_valid, is_valid

EXACT, VALID, PARSED = "exact", "schema_valid", "parsed"
SCHEMA, EQUALS = "schema", "equals"
"""Keys of a case: at least one of the two."""


def scorer(*, fenced: bool = True) -> Scorer:
    """Return a scorer that gives 1 for JSON that is valid and equal, as a case demands.

    It must be valid under the case's schema and equal its value, as far as the case has them.
    `fenced`: the JSON may also be in a fenced block of the answer.
    """

    def score(expected: object, response: Response) -> Score:
        wanted: Any = value_of(expected)
        read = partial(find_json, response.text, fenced=fenced)
        found = read()
        if found is NOTHING:
            return grade_value(0.0, None, {EXACT: 0.0, VALID: 0.0, PARSED: 0.0})
        valid = SCHEMA not in wanted or is_valid(json.dumps(wanted[SCHEMA]), found, read)
        exact = EQUALS not in wanted or same(found, wanted[EQUALS])
        right = valid and exact
        parts = {EXACT: float(exact), VALID: float(valid), PARSED: 1.0}
        mode = "another value" if valid else "not of the schema"
        return grade_value(float(right), json.dumps(found), parts, mode=mode)

    def answers(expected: object) -> tuple[str, str]:
        wanted: Any = value_of(expected)
        right = _example(wanted)
        if right is NOTHING:
            hint = "Give one as its `examples`, or give what the answer `equals`."
            raise PlanError("JSON that the schema allows cannot be generated", hint=hint)
        others = ("null", "{}", "[]", '"other"', "-1")
        wrong = find_wrong(score, expected, *others)
        return json.dumps(right), wrong

    return Scorer(version=2, score=score, answers=answers, problems=_problems)


def _problems(expected: object) -> list[str]:
    wanted, where = value_of(expected), place(expected)
    if not isinstance(wanted, Mapping) or not {SCHEMA, EQUALS} & wanted.keys():
        return [
            f"{where} must have a `schema`, or what the answer `equals`, or both; it is"
            f" {kind(wanted)}"
        ]
    wrong = [f"{where} has an unknown key: {key}" for key in wanted if key not in (SCHEMA, EQUALS)]
    wrong += [
        f"{where}.{key} cannot be written as JSON" for key in wanted if not is_json(wanted[key])
    ]
    if wrong or SCHEMA not in wanted:
        return wrong
    try:
        check_schema(json.dumps(wanted[SCHEMA]))
    except DatasetError as error:
        return [f"{where}.{SCHEMA} is {error}"]
    if EQUALS in wanted and not is_surely_valid(json.dumps(wanted[SCHEMA]), wanted[EQUALS]):
        return [f"{where}.{EQUALS} is not allowed by {where}.{SCHEMA}: no answer could be right"]
    return []


def _example(wanted: Mapping[str, Any]) -> Any:
    """Return JSON with full marks; NOTHING if none could be generated."""
    if EQUALS in wanted:
        return wanted[EQUALS]
    try:
        found = generate_instance(wanted[SCHEMA])
    except (ArithmeticError, RecursionError, TypeError, ValueError):
        return NOTHING
    return (
        found if is_json(found) and is_surely_valid(json.dumps(wanted[SCHEMA]), found) else NOTHING
    )


def exact_match(text: str, target: str, schema: str) -> Score:
    """Score 1 if the text parses, is valid under the schema and equals the target as parsed JSON.

    Equal means equal as Python values, as in TensorRT-LLM's suite: 1 and 1.0 are, 1 and "1" are
    not; the order of keys does not matter. The parts say how often it parsed, was valid, and was
    exact. The extracted answer is the unchanged text.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return grade_value(0.0, None, {EXACT: 0.0, VALID: 0.0, PARSED: 0.0})
    valid = is_valid(schema, found, partial(json.loads, text))
    exact = valid and bool(found == json.loads(target))
    parts = {EXACT: float(exact), VALID: float(valid), PARSED: 1.0}
    return grade_value(float(exact), text, parts)
