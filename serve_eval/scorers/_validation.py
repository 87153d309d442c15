"""Validate JSON under a schema, in bounded time and without fetching anything."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any

from serve_eval.errors import DatasetError

DIGITS = 4000
"""Largest number of digits of a number in an answer that is computed with."""
_LITERAL = ("const", "enum", "default", "examples")
"""Keywords of a schema that contain values, not schemas."""


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


def is_surely_valid(schema: str, found: Any) -> bool:
    """Return True if a value is valid as it is. An error of the validator is a no."""
    try:
        return bool(_validator(schema).is_valid(found))
    except (ArithmeticError, RecursionError, ValueError):
        return False


def check_schema(schema: str) -> None:
    """Raise DatasetError for a text that is not a JSON schema, before any request."""
    _validator(schema)


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
