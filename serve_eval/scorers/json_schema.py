"""The answer is JSON that is valid under a schema, or equals a given value, or both."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import find_zero_answer, kind, place, value_of
from serve_eval.scorers._instance import generate_instance
from serve_eval.scorers._json import NOTHING, find_json, is_json, same

EXACT, VALID, PARSED = "exact", "schema_valid", "parsed"
SCHEMA, EQUALS = "schema", "equals"
"""Keys of a case: at least one of the two."""
DIGITS = 4000
"""Largest number of digits of a number in an answer that is computed with."""
_LITERAL = ("const", "enum", "default", "examples")
"""Keywords of a schema that contain values, not schemas."""


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
            return Score(
                value=0.0, outcome=Outcome.UNPARSED, parts={EXACT: 0.0, VALID: 0.0, PARSED: 0.0}
            )
        valid = SCHEMA not in wanted or is_valid(json.dumps(wanted[SCHEMA]), found, read)
        exact = EQUALS not in wanted or same(found, wanted[EQUALS])
        right = valid and exact
        parts = {EXACT: float(exact), VALID: float(valid), PARSED: 1.0}
        outcome = Outcome.CORRECT if right else Outcome.WRONG
        mode = None if right else "another value" if valid else "not of the schema"
        return Score(
            value=float(right), outcome=outcome, answer=json.dumps(found), parts=parts, mode=mode
        )

    def answers(expected: object) -> tuple[str, str]:
        wanted: Any = value_of(expected)
        right = _example(wanted)
        if right is NOTHING:
            hint = "Give one as its `examples`, or give what the answer `equals`."
            raise PlanError("JSON that the schema allows cannot be generated", hint=hint)
        others = ("null", "{}", "[]", '"other"', "-1")
        wrong = find_zero_answer(
            lambda text: score(expected, Response(text=text, finish_reason="stop")), *others
        )
        return json.dumps(right), wrong

    return Scorer(version=1, score=score, answers=answers, problems=_problems)


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
    if EQUALS in wanted and not _surely_valid(json.dumps(wanted[SCHEMA]), wanted[EQUALS]):
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
    return found if is_json(found) and _surely_valid(json.dumps(wanted[SCHEMA]), found) else NOTHING


def is_valid(schema: str, found: Any, read_again: Callable[..., Any]) -> bool:
    """Return True if a value is valid under a schema.

    If a number in it is too large for a float, and thus for the validator, `read_again` reads the
    value once more with another `parse_float`. Raises RecursionError for a value that is nested too
    deeply.
    """
    validator = _validator(schema)
    try:
        return bool(validator.is_valid(found))
    except (OverflowError, ValueError):
        return bool(validator.is_valid(read_again(parse_float=_number)))


def _surely_valid(schema: str, found: Any) -> bool:
    try:
        return bool(_validator(schema).is_valid(found))
    except (ArithmeticError, RecursionError, ValueError):
        return False


# A plan builds each of its tasks several times, with a schema for each of thousands of cases.
@lru_cache(maxsize=4096)
def _validator(schema: str) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import DRAFT202012, specification_with

    try:
        content = json.loads(schema)
        if not isinstance(content, dict):
            raise DatasetError("not a JSON schema: it must be a mapping")
        if not isinstance(content.get("$schema", ""), str):
            raise DatasetError("not a JSON schema: its $schema must be a text")
        kind = validator_for(content)
        kind.check_schema(content)
        # An own registry: the default one would fetch what a schema refers to.
        drafted = specification_with(content.get("$schema", ""), default=DRAFT202012)
        resource = drafted.create_resource(content)
        address = resource.id() or ""
        with suppress(AttributeError):  # referencing cannot read some schemas of draft 3
            registry = REGISTRY.with_resource(address, resource).crawl()
            _check_references(content, registry.resolver(address), drafted)
    except (ValueError, SchemaError) as error:
        raise DatasetError(f"not a JSON schema: {str(error).splitlines()[0]}") from error
    return _quick(kind)(content, registry=REGISTRY)


@lru_cache
def _quick(kind: Any) -> Any:
    """Return a validator's class with our own keywords."""
    from jsonschema.validators import extend

    return extend(kind, {"uniqueItems": _unique_items, "multipleOf": _multiple_of})  # type: ignore[no-untyped-call]


def _check_references(schema: object, resolver: Any, drafted: Any) -> None:
    """Raise DatasetError for a reference, at any place, to something that the schema lacks."""
    from referencing.exceptions import Unresolvable

    inner: Iterable[object] = ()
    if isinstance(schema, dict):
        for word in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(word), str):
                try:
                    resolver.lookup(schema[word])
                except Unresolvable as error:
                    raise DatasetError(
                        f"not a JSON schema: it refers to {schema[word]}, which is not in it"
                    ) from error
        inner = [value for name, value in schema.items() if name not in _LITERAL]
    elif isinstance(schema, list):
        inner = schema
    for one in inner:
        within = resolver
        if (
            isinstance(one, dict)
            and isinstance(one.get("$id", one.get("id")), str)
            and drafted.id_of(one)
        ):
            within = resolver.in_subresource(drafted.create_resource(one))
        _check_references(one, within, drafted)


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Validate like jsonschema, in time linear in the length of the list instead of quadratic."""
    from jsonschema.exceptions import ValidationError

    if (
        wanted
        and validator.is_type(instance, "array")
        and len({_key(item) for item in instance}) < len(instance)
    ):
        yield ValidationError("it has equal items")


def _key(value: Any) -> Any:
    """Return a hashable key that is equal only for equal JSON values.

    1 and 1.0 are equal, 1 and true are not.
    """
    if isinstance(value, dict):
        return dict, frozenset((name, _key(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, tuple(map(_key, value))
    return (bool, value) if isinstance(value, bool) else value


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Validate like jsonschema; if it overflows, use the numbers as they are written."""
    from fractions import Fraction

    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

    try:
        yield from Draft202012Validator.VALIDATORS["multipleOf"](validator, step, instance, schema)
    except OverflowError:
        if (Fraction(str(instance)) / Fraction(str(step))).denominator != 1:
            yield ValidationError("it is not a multiple")


def _number(text: str) -> float | int:
    """Return a number of JSON; one that is too large for a float with all its digits.

    Raises OverflowError beyond DIGITS.
    """
    value = float(text)
    if not math.isinf(value):
        return value
    exact = Decimal(text)
    if exact.adjusted() >= DIGITS:
        raise OverflowError(f"a number of more than {DIGITS} digits")
    return int(exact)


def check_schema(schema: str) -> None:
    """Raise DatasetError for a text that is not a JSON schema, before any request."""
    _validator(schema)


def exact_match(text: str, target: str, schema: str) -> Score:
    """Score 1 if the text parses, is valid under the schema and equals the target as parsed JSON.

    Equal means equal as Python values, as in TensorRT-LLM's suite: 1 and 1.0 are, 1 and "1" are
    not; the order of keys does not matter. The parts say how often it parsed, was valid, and was
    exact. The extracted answer is the unchanged text.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return Score(
            value=0.0, outcome=Outcome.UNPARSED, parts={EXACT: 0.0, VALID: 0.0, PARSED: 0.0}
        )
    valid = is_valid(schema, found, partial(json.loads, text))
    exact = valid and bool(found == json.loads(target))
    parts = {EXACT: float(exact), VALID: float(valid), PARSED: 1.0}
    return Score(
        value=float(exact),
        outcome=Outcome.CORRECT if exact else Outcome.WRONG,
        answer=text,
        parts=parts,
    )
