"""Compare our handling of JSON schemas with the package jsonschema, and runs over HTTP.

The schemas are real ones of tool parameters, and made ones. Three things are compared: the validity
of schemas, the validity of values under them, and the figures of runs whose cases offer tools of
these schemas or whose requests ask for JSON of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from serve_eval.errors import DatasetError
from serve_eval.schema import Response
from serve_eval.scorers import json_schema
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.json_schema import VALID, exact_match
from tests.oracle._schema_runs import run_of_json, run_of_tools
from tests.oracle._schemas import broken, changed, made, values, without_target
from tests.oracle._shared import shared
from tests.oracle.part import Compared, Skipped

MADE, BROKEN, LOST = 2000, 500, 200
"""Numbers of made schemas, of broken ones and of those with a lost reference."""


def compare() -> list[Compared]:
    """Compare everything; without the real schemas, only the made ones."""
    rng = random.Random(11)
    try:
        real = [
            json.loads(line)
            for file in sorted(shared("tool_schemas").glob("*.jsonl"))
            for line in file.open()
        ]
    except Skipped as skipped:
        real, missing = [], [f"without real schemas: {skipped}"]
    else:
        missing = []
    own = [made(rng) for _ in range(MADE)]
    faulty = [broken(rng.choice(own), rng) for _ in range(BROKEN)]
    lost = [without_target(rng.choice(own), rng) for _ in range(LOST)]
    sound = [schema for schema in (*real, *own) if _theirs(schema) is None]
    results = [
        _acceptance(
            f"{len(real)} real, {MADE} made and {BROKEN} broken ones", [*real, *own, *faulty]
        ),
        _references(lost),
        _values(
            "values under real schemas", [one for one in real if _theirs(one) is None], 20, rng
        ),
        _values("values under made schemas", own, 4, rng),
        *_runs(sound[: len(real)] or sound[:200], rng),
    ]
    results[0].notes += missing
    return results


def _acceptance(what: str, schemas: Sequence[Any]) -> Compared:
    result = Compared(what=f"whether they are schemas: {what}")
    refused = 0
    for schema in schemas:
        theirs, ours = _theirs(schema), _ours(schema)
        refused += theirs is not None
        result.add(json.dumps(schema)[:200], ours, theirs and f"not a JSON schema: {theirs}")
    result.notes.append(f"{refused} are none, for the same reason in the same words")
    return result


def _references(schemas: Sequence[Any]) -> Compared:
    """Check that we refuse schemas with lost references.

    jsonschema notices these only if a value uses them.
    """
    result = Compared(what="schemas that refer to what they do not hold, all refused")
    for schema in schemas:
        ours = _ours(schema) or "taken"
        result.add(json.dumps(schema)[:200], ours.endswith("which is not in it"), True)
    return result


def _values(what: str, schemas: Sequence[Any], each: int, rng: random.Random) -> Compared:
    """Compare the scorer json_schema and the metric of json_mode_eval with jsonschema."""
    result, followed = Compared(what=f"{what}, by both scorers and jsonschema"), 0
    score = json_schema.scorer().score
    for schema in schemas:
        validator = validator_for(schema)(schema)
        text = json.dumps(schema)
        for value in values(schema, rng, each):
            said = json.dumps(value)
            theirs = validator.is_valid(value)
            scored = score({"schema": schema}, Response(text=said, finish_reason="stop"))
            exact = exact_match(said, said, text)
            result.add(
                f"{text[:150]} {said[:150]}", (scored.value, exact.parts[VALID]), (theirs, theirs)
            )
            followed += theirs
    result.notes.append(f"{followed} follow their schema")
    return result


def _runs(schemas: Sequence[Any], rng: random.Random) -> Iterator[Compared]:
    pairs = [(schema, value) for schema in schemas for value in _valid(schema, rng)]
    yield run_of_tools(pairs, rng)
    yield run_of_json(pairs, [changed(value, rng) for _, value in pairs])


def _valid(schema: Any, rng: random.Random, tries: int = 50) -> list[Any]:
    """Return a value that follows a schema, if one of several tries does."""
    validator = validator_for(schema)(schema)
    return [one for one in values(schema, rng, tries) if validator.is_valid(one)][:1]


def _theirs(schema: Mapping[str, Any]) -> str | None:
    """Return jsonschema's reason for refusing the schema, or None."""
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return str(error).splitlines()[0]
    return None


def _ours(schema: Any) -> str | None:
    try:
        check_schema(json.dumps(schema))
    except DatasetError as error:
        return str(error)
    return None
