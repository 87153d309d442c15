"""The answer is JSON that a schema allows, or that equals a given value, or both."""

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
"""What a case may say of the JSON: at least one of the two."""
DIGITS = 4000
"""Of a number in an answer that is worked with."""
_LITERAL = ("const", "enum", "default", "examples")
"""Words of a schema under which values stand, and no schemas."""


def scorer(*, fenced: bool = True) -> Scorer:
    """1 for JSON that is valid under the schema of a case and equals its value, as far as it gives
    them. `fenced`: the JSON may also stand in a fenced block of the answer.
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
            hint = "Write one as its `examples`, or say what the answer `equals`."
            raise PlanError("no JSON could be made up that the schema allows", hint=hint)
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
            f"{where} must have a `schema`, or what the answer `equals`, or both, and is"
            f" {kind(wanted)}"
        ]
    wrong = [
        f"{where} has {key}, of which nothing is known"
        for key in wanted
        if key not in (SCHEMA, EQUALS)
    ]
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
    """JSON with full marks; NOTHING where none could be made up."""
    if EQUALS in wanted:
        return wanted[EQUALS]
    try:
        found = generate_instance(wanted[SCHEMA])
    except (ArithmeticError, RecursionError, TypeError, ValueError):
        return NOTHING
    return found if is_json(found) and _surely_valid(json.dumps(wanted[SCHEMA]), found) else NOTHING


def is_valid(schema: str, found: Any, read_again: Callable[..., Any]) -> bool:
    """Whether a value is valid under a schema. Where a number of it is too large for a float, and
    for the validator, `read_again` reads the value once more with another `parse_float`. Raises
    RecursionError for a value that is too deep to be looked at.
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


@lru_cache(
    maxsize=4096
)  # a plan builds each of its tasks several times, with a schema for each of thousands of cases
def _validator(schema: str) -> Any:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import DRAFT202012, specification_with

    try:
        content = json.loads(schema)
        if not isinstance(content, dict):
            raise DatasetError("not a JSON schema: a mapping is one")
        if not isinstance(content.get("$schema", ""), str):
            raise DatasetError("not a JSON schema: its $schema is no text")
        kind = validator_for(content)
        kind.check_schema(content)
        # A registry of its own: the default one would fetch what a schema refers to.
        drafted = specification_with(content.get("$schema", ""), default=DRAFT202012)
        resource = drafted.create_resource(content)
        address = resource.id() or ""
        with suppress(AttributeError):  # of referencing, which cannot read some schemas of draft 3
            registry = REGISTRY.with_resource(address, resource).crawl()
            _check_references(content, registry.resolver(address), drafted)
    except (ValueError, SchemaError) as error:
        raise DatasetError(f"not a JSON schema: {str(error).splitlines()[0]}") from error
    return _quick(kind)(content, registry=REGISTRY)


@lru_cache
def _quick(kind: Any) -> Any:
    """A validator's class with words of our own."""
    from jsonschema.validators import extend

    return extend(kind, {"uniqueItems": _unique_items, "multipleOf": _multiple_of})  # type: ignore[no-untyped-call]


def _check_references(schema: object, resolver: Any, drafted: Any) -> None:
    """Raises DatasetError for what a schema refers to at any place and does not hold."""
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
    """Validate as jsonschema does, in time that grows with the length of the list and not with its
    square.
    """
    from jsonschema.exceptions import ValidationError

    if (
        wanted
        and validator.is_type(instance, "array")
        and len({_key(item) for item in instance}) < len(instance)
    ):
        yield ValidationError("it has equal items")


def _key(value: Any) -> Any:
    """Return a hashable key, equal for equal JSON values alone: 1 and 1.0 are equal, 1 and true are
    not.
    """
    if isinstance(value, dict):
        return dict, frozenset((name, _key(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, tuple(map(_key, value))
    return (bool, value) if isinstance(value, bool) else value


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """What jsonschema says, and where it overflows what is true of the numbers as they are
    written.
    """
    from fractions import Fraction

    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

    try:
        yield from Draft202012Validator.VALIDATORS["multipleOf"](validator, step, instance, schema)
    except OverflowError:
        if (Fraction(str(instance)) / Fraction(str(step))).denominator != 1:
            yield ValidationError("it is no multiple")


def _number(text: str) -> float | int:
    """A number of JSON; one that is too large for a float by all its digits. Raises OverflowError
    beyond DIGITS.
    """
    value = float(text)
    if not math.isinf(value):
        return value
    exact = Decimal(text)
    if exact.adjusted() >= DIGITS:
        raise OverflowError(f"a number of more than {DIGITS} digits")
    return int(exact)


def check_schema(schema: str) -> None:
    """Raises DatasetError for a text that is no JSON schema, before anything is asked."""
    _validator(schema)


def exact_match(text: str, target: str, schema: str) -> Score:
    """1 when the text parses, is valid under the schema and equals the target as parsed JSON.

    Equal means equal as Python values, as in TensorRT-LLM's suite: 1 and 1.0 are, 1 and "1" are
    not, the order of keys does not matter. The parts say how often it parsed, was valid, and was
    exact; the text as it came is the answer.
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
