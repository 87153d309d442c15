from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import DatasetError
from serve_eval.schema import Outcome
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.json_schema import exact_match

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "number"}},
        "required": ["name"],
    }
)
TARGET = '{"name": "a", "size": 1}'


@pytest.mark.parametrize(
    ("text", "outcome", "exact", "valid", "parsed"),
    [
        ('{"size": 1.0,\n "name": "a"}', Outcome.CORRECT, 1, 1, 1),
        ('{"name": "a"}', Outcome.WRONG, 0, 1, 1),
        ('{"name": "a", "size": "1"}', Outcome.WRONG, 0, 0, 1),
        ('{"size": 1}', Outcome.WRONG, 0, 0, 1),
        ("[]", Outcome.WRONG, 0, 0, 1),
        ('{"name": "a", "size": 1', Outcome.UNPARSED, 0, 0, 0),
        ('```json\n{"name": "a", "size": 1}\n```', Outcome.UNPARSED, 0, 0, 0),
        ("[" * 100_000, Outcome.UNPARSED, 0, 0, 0),
        ("", Outcome.UNPARSED, 0, 0, 0),
    ],
)
def test_exact_valid_and_parsed_are_counted_apart(
    text: str, outcome: Outcome, exact: float, valid: float, parsed: float
) -> None:
    score = exact_match(text, TARGET, SCHEMA)
    assert score.outcome is outcome
    assert score.value == exact
    assert score.parts == {"exact": exact, "schema_valid": valid, "parsed": parsed}


@pytest.mark.parametrize("schema", ["{", '{"type": 3}', '{"type": "nothing"}'])
def test_a_broken_schema_is_an_error_of_the_data(schema: str) -> None:
    with pytest.raises(DatasetError, match="not a JSON schema"):
        check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"$dynamicRef": "#nope"}, "#nope"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"$id": "http://made.up/x", "$ref": "nope"}}},
            "nope",
        ),
        (
            {"items": [{"$ref": "#/nope"}], "$schema": "http://json-schema.org/draft-07/schema#"},
            "#/nope",
        ),
    ],
)
def test_a_schema_that_refers_to_nothing_is_found_out_before_it_is_asked(
    schema: object, named: str
) -> None:
    with pytest.raises(DatasetError, match=f"it refers to {named}, which is not in it"):
        check_schema(json.dumps(schema))


def test_a_reference_within_an_address_of_its_own_is_followed() -> None:
    inner = {
        "$id": "http://made.up/x",
        "$ref": "#/$defs/text",
        "$defs": {"text": {"type": "string"}},
    }
    schema = json.dumps({"$id": "http://made.up/", "$ref": "x", "$defs": {"inner": inner}})
    check_schema(schema)
    assert exact_match('"a"', '"a"', schema).value == 1.0
    assert exact_match("1", "1", schema).value == 0.0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=5), st.sampled_from([2, 0.5, 0.1, 3]))
def test_unique_items_and_multiples_are_what_jsonschema_says(
    items: list[object], step: float
) -> None:
    schema = {"uniqueItems": True, "items": {"multipleOf": step}}
    text = json.dumps(items)
    # jsonschema sorts lists and compares neighbours. In Python's order true equals 1, so it may
    # miss equal items.
    equal = any(_alike(a, b) for i, a in enumerate(items) for b in items[:i])
    multiples = jsonschema.Draft202012Validator({"items": {"multipleOf": step}}).is_valid(items)
    assert bool(exact_match(text, text, json.dumps(schema)).parts["schema_valid"]) is (
        not equal and multiples
    )


def _alike(one: object, other: object) -> bool:
    return jsonschema.Draft202012Validator({"const": one}).is_valid(other)


def test_a_long_list_is_told_apart_in_time_that_grows_with_its_length() -> None:
    items = [{"a": i} for i in range(100_000)]
    assert (
        exact_match(json.dumps(items), "[]", '{"uniqueItems": true}').parts["schema_valid"] == 1.0
    )
    assert (
        exact_match(json.dumps([*items, {"a": 7}]), "[]", '{"uniqueItems": true}').parts[
            "schema_valid"
        ]
        == 0.0
    )
