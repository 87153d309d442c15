"""The answer is JSON that a schema allows, or that equals a given value, or both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import kind, place, scoring_nothing, value_of
from serve_eval.scorers._instance import fitting
from serve_eval.scorers._json import NOTHING, found_in, is_json, same

EXACT, VALID, PARSED = "exact", "schema_valid", "parsed"
SCHEMA, EQUALS = "schema", "equals"
"""What a case may say of the JSON: at least one of the two."""
_LITERAL = ("const", "enum", "default", "examples")
"""Words of a schema under which values stand, and no schemas."""


def scorer(*, fenced: bool = True) -> Scorer:
    """1 for JSON that is valid under the schema of a case and equals its value, as far as it gives them. `fenced`: the
    JSON may also stand in a fenced block of the answer."""

    def score(expected: object, response: Response) -> Score:
        wanted: Any = value_of(expected)
        found = found_in(response.text, fenced=fenced)
        if found is NOTHING:
            return Score(value=0.0, outcome=Outcome.UNPARSED, parts={EXACT: 0.0, VALID: 0.0, PARSED: 0.0})
        valid = SCHEMA not in wanted or _is_valid(json.dumps(wanted[SCHEMA]), found)
        exact = EQUALS not in wanted or same(found, wanted[EQUALS])
        right = valid and exact
        parts = {EXACT: float(exact), VALID: float(valid), PARSED: 1.0}
        outcome = Outcome.CORRECT if right else Outcome.WRONG
        mode = None if right else "another value" if valid else "not of the schema"
        return Score(value=float(right), outcome=outcome, answer=json.dumps(found), parts=parts, mode=mode)

    def answers(expected: object) -> tuple[str, str]:
        wanted: Any = value_of(expected)
        right = _example(wanted)
        if right is NOTHING:
            hint = "Write one as its `examples`, or say what the answer `equals`."
            raise PlanError("no JSON could be made up that the schema allows", hint=hint)
        others = ("null", "{}", "[]", '"other"', "-1")
        wrong = scoring_nothing(lambda text: score(expected, Response(text=text, finish_reason="stop")), *others)
        return json.dumps(right), wrong

    return Scorer(version=1, score=score, answers=answers, problems=_problems)


def _problems(expected: object) -> list[str]:
    wanted, where = value_of(expected), place(expected)
    if not isinstance(wanted, Mapping) or not {SCHEMA, EQUALS} & wanted.keys():
        return [f"{where} must have a `schema`, or what the answer `equals`, or both, and is {kind(wanted)}"]
    wrong = [f"{where} has {key}, of which nothing is known" for key in wanted if key not in (SCHEMA, EQUALS)]
    wrong += [f"{where}.{key} cannot be written as JSON" for key in wanted if not is_json(wanted[key])]
    if wrong or SCHEMA not in wanted:
        return wrong
    try:
        check_schema(json.dumps(wanted[SCHEMA]))
    except DatasetError as error:
        return [f"{where}.{SCHEMA} is {error}"]
    if EQUALS in wanted and not _is_valid(json.dumps(wanted[SCHEMA]), wanted[EQUALS]):
        return [f"{where}.{EQUALS} is not allowed by {where}.{SCHEMA}: no answer could be right"]
    return []


def _example(wanted: Mapping[str, Any]) -> Any:
    """JSON with full marks; NOTHING where none could be made up."""
    if EQUALS in wanted:
        return wanted[EQUALS]
    try:
        found = fitting(wanted[SCHEMA])
    except (ArithmeticError, RecursionError, TypeError, ValueError):
        return NOTHING
    return found if is_json(found) and _is_valid(json.dumps(wanted[SCHEMA]), found) else NOTHING


def _is_valid(schema: str, found: Any) -> bool:
    """Whether a value is valid; one that is too deep or too large to be looked at is not."""
    try:
        return bool(_validator(schema).is_valid(found))
    except (ArithmeticError, RecursionError, ValueError):
        return False


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        content = json.loads(schema)
        if not isinstance(content, dict):
            raise DatasetError("not a JSON schema: a mapping is one")
        if not isinstance(content.get("$schema", ""), str):
            raise DatasetError("not a JSON schema: its $schema is no text")
        kind = validator_for(content)
        kind.check_schema(content)
        # A registry of its own: the default one would fetch what a schema refers to.
        registry = REGISTRY.with_resource("", DRAFT202012.create_resource(content)).crawl()
        for reference in _references(content):
            registry.resolver("").lookup(reference)
    except Unresolvable as error:
        raise DatasetError(f"not a JSON schema: it refers to {error.ref}, which is not in it") from error
    except (ValueError, SchemaError) as error:
        raise DatasetError(f"not a JSON schema: {str(error).splitlines()[0]}") from error
    return kind(content, registry=REGISTRY)


def _references(schema: object) -> Iterator[str]:
    """What a schema refers to at any place, but within what has an address of its own."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for name, inner in schema.items():
            if name not in _LITERAL and not (isinstance(inner, dict) and "$id" in inner):
                yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)


def check_schema(schema: str) -> None:
    """Raises DatasetError for a text that is no JSON schema, before anything is asked."""
    _validator(schema)


def exact_match(text: str, target: str, schema: str) -> Score:
    """1 when the text parses, is valid under the schema and equals the target as parsed JSON.

    Equal means equal as Python values, as in TensorRT-LLM's suite: 1 and 1.0 are, 1 and "1" are not, the order of keys
    does not matter. The parts say how often it parsed, was valid, and was exact; the text as it came is the answer.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return Score(value=0.0, outcome=Outcome.UNPARSED, parts={EXACT: 0.0, VALID: 0.0, PARSED: 0.0})
    valid = bool(_validator(schema).is_valid(found))
    exact = valid and bool(found == json.loads(target))
    parts = {EXACT: float(exact), VALID: float(valid), PARSED: 1.0}
    return Score(value=float(exact), outcome=Outcome.CORRECT if exact else Outcome.WRONG, answer=text, parts=parts)
