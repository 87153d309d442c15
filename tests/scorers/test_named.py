"""Test the scores of named scorers for typical answers of models."""

import asyncio
import json
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError, SandboxError
from serve_eval.plugins import registry
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import Outcome, Response, ToolCall
from serve_eval.scorers import any_of, exact
from serve_eval.scorers import set as set_scorer
from serve_eval.scorers._examples import build_match, generate_instance
from serve_eval.scorers._plain_text import plain
from serve_eval.scorers._stated import find_stated
from serve_eval.scorers.numeric import numbers_in
from serve_eval.scorers.set import items_in
from tests.scorers.test_offered import made


def _score(name, expected, text, **options):
    return made(name, options).score(expected, Response(text=text, finish_reason="stop"))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("  The  answer:\n**Paris**. ", "the answer paris"),
        ("'New York' (USA)!", "new york usa"),
        ("-5", "-5"),
        ("3.14.", "3.14"),
        (".5", ".5"),
        ("C++ and C#", "c++ and c#"),
        ("it's", "it's"),
        ("\u201cParis\u201d \u2026", "paris"),
        ("...", ""),
    ],
)
def test_punctuation_goes_and_what_means_something_stays(text, form):
    assert plain(text) == form


def test_exact_wants_the_text_and_nothing_else():
    assert _score("exact", "Paris", " paris.\n").outcome is Outcome.CORRECT
    assert _score("exact", "Paris", "It is Paris").outcome is Outcome.WRONG
    assert _score("exact", "Paris", "paris", ignore_case=False).outcome is Outcome.WRONG
    assert _score("exact", "5", "-5").outcome is Outcome.WRONG
    assert _score("exact", 5, "5").outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("expected", "text", "strict", "usual"),
    [
        ("left side", " Left side.\n", 1.0, 1.0),
        ("left side", "left  side", 0.0, 1.0),
        ("b", "B)", 0.0, 1.0),
        ("b", "**b**", 0.0, 1.0),
        ("Digoxin", "Digoxin", 0.0, 1.0),
        ("e.g.", "e.g.", 0.0, 1.0),
        ("10", "1.0", 1.0, 0.0),
        ("a, b", "A, b.", 1.0, 1.0),
        ("b", '"b"', 0.0, 1.0),
    ],
)
def test_exact_compares_as_biochatter_does_when_told_to(expected, text, strict, usual):
    """The option changes the answer but not the expectation.

    It removes only three punctuation marks, at any place.
    """
    assert _score("exact", expected, text, as_biochatter=True).value == strict
    assert _score("exact", expected, text).value == usual


@pytest.mark.parametrize(
    ("text", "value"),
    [("Air, and OXYGEN", 1.0), ("b.r.e.a.t.h", 1.0), ("nothing", 0.5), ("", 0.0), ("air", 0.5)],
)
def test_words_counts_as_biochatter_does_when_told_to(text, value):
    """A list holds synonyms.

    In a text any letter counts, here o of oxygen, or e.
    """
    expected = {"words_in_response": [["air", "breath"], "oxygen"]}
    assert _score("words", expected, text, as_biochatter=True).value == value


@pytest.mark.parametrize(
    ("name", "options"), [("exact", {"ignore_case": False}), ("words", {"whole_words": True})]
)
def test_an_option_without_effect_is_refused(name, options):
    with pytest.raises(
        PlanError,
        match="as_biochatter decides how answers are compared: leave out the other options",
    ):
        _score(name, "x", "x", as_biochatter=True, **options)


@pytest.fixture(scope="module")
def sandbox():
    try:
        return asyncio.run(strongest(at_once=1))[0]
    except SandboxError as error:
        pytest.skip(str(error))


LETTERS = {letter: letter for letter in "ABCDI"}
PLACES = {"Paris": 1, "New York": 2, "York": 3, "type 2": 4}


@pytest.mark.parametrize(
    ("text", "meanings", "said"),
    [
        ("B", LETTERS, "B"),
        ("b.", LETTERS, "B"),
        ("(B) because A is wrong", LETTERS, "B"),
        ("**B**", LETTERS, "B"),
        ("B: Paris", LETTERS, "B"),
        ("\\boxed{C}", LETTERS, "C"),
        ("The answer is \\boxed{\\text{C}}.", LETTERS, "C"),
        ("A patient of mine, I think, has B", LETTERS, "B"),
        ("A is wrong. B is wrong. So the correct answer is **C**.", LETTERS, "C"),
        ("Answer: A? No. Answer: B", LETTERS, "B"),
        ("the answer is a matter of taste", LETTERS, None),
        ("The answer is A because B is not", LETTERS, "A"),
        ("the answer is b", LETTERS, "B"),
        ("Both A and B, or B and C", LETTERS, None),
        ("Nothing of the kind", LETTERS, None),
        ("BANANA", LETTERS, None),
        ("It must be new york.", PLACES, 2),
        ("Paris, not York", PLACES, 1),
        ("York or Paris", PLACES, None),
        ("This is type 2b", PLACES, None),
        ("\u0131s it type 2", PLACES, 4),
    ],
)
def test_what_a_text_states(text, meanings, said):
    assert find_stated(text, meanings) == said


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Yes, there is no doubt.", Outcome.CORRECT),
        ("TRUE", Outcome.CORRECT),
        ("**Answer:** yes", Outcome.CORRECT),
        ("I would say yes", Outcome.CORRECT),
        ("No.", Outcome.WRONG),
        ("There is no such gene", Outcome.WRONG),
        ("Yes and no", Outcome.UNPARSED),
        ("Unknown", Outcome.UNPARSED),
    ],
)
def test_yes_and_no_in_what_models_say(text, outcome):
    assert _score("yes_no", True, text).outcome is outcome


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ASPIRIN, the dosage", 1.0),
        ("the amount", 0.5),
        ("nothing", 0.0),
        ("aspirins in doses", 1.0),
    ],
)
def test_words_have_a_point_each_by_any_synonym(text, value):
    assert (
        _score("words", {"words_in_response": ["aspirin", "dose|dosage|amount"]}, text).value
        == value
    )


def test_words_may_be_literal_and_whole():
    assert _score("words", ["a.c"], "abc").value == 0.0
    assert _score("words", ["cat"], "concatenate").value == 1.0
    assert _score("words", ["cat"], "concatenate", whole_words=True).value == 0.0
    assert _score("words", ["C++"], "in C++, say", whole_words=True).value == 1.0


def test_regex_parts_have_a_point_each_and_a_pair_wants_either():
    expected = {"parts_of_query": ["MATCH", ["WHERE a", "WHERE b"], r"RETURN \w+$"]}
    assert _score("regex", expected, "MATCH x WHERE b RETURN n").value == 1.0
    score = _score("regex", expected, "MATCH x WHERE c RETURN n;")
    assert (score.value, score.outcome, score.answer) == (1 / 3, Outcome.PARTIAL, "MATCH")


def test_a_search_without_an_end_is_ended_and_costs_its_own_point_alone():
    score = _score("regex", [r"(a|aa)+$", "b"], "a" * 60 + "b", time_limit_s=0.05)
    assert (score.value, score.parts["timed out"], score.mode) == (0.5, 1.0, "timed out")


@pytest.mark.parametrize(
    "pattern",
    [
        "MATCH",
        r"a{2,3}(b|c)+d?",
        r"[^\d\sx]\W",
        r"(?P<q>['\"])x(?P=q)",
        r"\d{4}-\d\d",
        "(?i:ab)",
        r"^x\.y$",
        "[b-d-]",
        ".",
    ],
)
def test_a_text_is_made_up_that_matches(pattern):
    import regex

    text = build_match(pattern)
    assert text is not None
    assert regex.search(pattern, text)


def test_where_none_can_be_made_up_an_example_is_asked_for():
    scorer = made("regex", {})
    expected = {"parts_of_query": [r"(?<=q)\b(?!q)z+(?<!z)"]}
    assert not scorer.problems(expected)
    with pytest.raises(
        PlanError, match="a text that these regular expressions match cannot be generated"
    ):
        scorer.answers(expected)


def test_any_of_takes_the_best_score():
    assert _score("any_of", ["Paris", "Lutetia"], "lutetia").value == 1.0
    assert _score("any_of", [["a", "b"], ["c", "d", "e"]], "a d e", scorer="words").value == 2 / 3
    assert (
        _score("any_of", [3, 4], "none", scorer={"numeric": {"absolute": 0.5}}).outcome
        is Outcome.UNPARSED
    )


def test_another_version_of_the_scorer_within_any_of_decides_otherwise(
    monkeypatch,
):
    before = made("any_of", {}).decisive
    assert before == made("any_of", {"scorer": "exact"}).decisive
    assert before != made("any_of", {"scorer": {"exact": {"ignore_case": False}}}).decisive

    def newer(**options):
        return replace(exact.scorer(**options), version=99)

    monkeypatch.setattr(registry, "load", lambda folder, name: newer)
    assert any_of.scorer().decisive != before


@pytest.mark.parametrize(
    ("scorer", "told"),
    [
        ("exakt", "exact"),
        ({"exact": {"x": 1}}, "unknown option"),
        ({}, "one name"),
        ("code", "runs the answer"),
    ],
)
def test_any_of_says_what_is_wrong_with_its_scorer(scorer, told):
    with pytest.raises(PlanError, match=told):
        made("any_of", {"scorer": scorer})


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a", "b"]', ["a", "b"]),
        ('The genes:\n```json\n["a", 2]\n```\nDone.', ["a", 2]),
        ('They are ["a", "b"].', ["a", "b"]),
        ("- a\n* b\n1. c\n2) d", ["a", "b", "c", "d"]),
        ("Here they are:\n\n* a\n* b\n\nTell me more, please.", ["a", "b"]),
        ("The genes are: a, b, and c.", ["a", "b", "c."]),
        ("a and b", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("Gene: a", ["a"]),
        ("", []),
    ],
)
def test_a_set_is_read_in_each_of_its_forms(text, items):
    assert items_in(text) == items


def test_a_set_is_measured():
    score = _score("set", ["A", "B", "C"], "a, b, x")
    assert score.value == pytest.approx(2 / 3)
    assert (score.parts["precision"], score.parts["recall"]) == (
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    )
    assert _score("set", ["A", "B", "C"], "a", measure="precision").value == 1.0
    assert _score("set", ["A", "B", "C"], "a", measure="recall").value == pytest.approx(1 / 3)
    assert _score("set", ["A", "B"], "b, a, a", measure="exact").value == 1.0
    assert _score("set", ["A", "B"], "b", measure="exact").value == 0.0


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is 1,234.5 mg.", [1234.5]),
        ("-5 and +3 and \u22122", [-5.0, 3.0, -2.0]),
        ("5-3", [5.0, 3.0]),
        ("COVID-19 has .5 % and 6.02e23", [19.0, 0.5, 6.02e23]),
        ("1, 2 and 12,34", [1.0, 2.0, 12.0, 34.0]),
        ("version 1.2.3", [1.2]),
        ("v12 x7", []),
        ("1e999", [float("inf")]),
        ("none", []),
    ],
)
def test_numbers_of_a_sentence(text, numbers):
    assert numbers_in(text) == numbers


def test_a_number_counts_within_its_tolerance():
    assert _score("numeric", 100, "from 7 to 101").value == 0.0
    assert _score("numeric", 100, "from 7 to 101", absolute=1.0).value == 1.0
    assert _score("numeric", -100, "-101", relative=0.01).value == 1.0
    assert _score("numeric", 7, "from 7 to 101", take="first").value == 1.0
    assert _score("numeric", 7, "1e999", absolute=1e308).outcome is Outcome.WRONG
    assert _score("numeric", 7, "seven").outcome is Outcome.UNPARSED


def test_rouge_is_a_share():
    score = _score("rouge", "the cat sat", "the cat ran")
    assert (score.value, score.outcome) == (pytest.approx(2 / 3), Outcome.PARTIAL)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("expected", "text", "value"),
    [
        ({"schema": SCHEMA}, '{"n": 3}', 1.0),
        ({"schema": SCHEMA}, 'Here:\n```json\n{"n": 3}\n```', 1.0),
        ({"schema": SCHEMA}, '{"n": "3"}', 0.0),
        ({"schema": SCHEMA, "equals": {"n": 4}}, '{"n": 3}', 0.0),
        ({"equals": {"a": 1, "b": [1.0, True]}}, '{"b": [1, true], "a": 1.0}', 1.0),
        ({"equals": 1}, "true", 0.0),
        ({"equals": None}, "null", 1.0),
    ],
)
def test_json_is_valid_and_equal(expected, text, value):
    assert _score("json_schema", expected, text).value == value


def test_json_that_a_validator_cannot_look_at_is_not_called_invalid():
    deep = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}}
    with pytest.raises(RecursionError):
        _score("json_schema", {"schema": deep}, "[" * 500 + "]" * 500)
    assert _score("json_schema", {"schema": deep}, "[" * 100_000).outcome is Outcome.UNPARSED


@pytest.mark.parametrize(("step", "value"), [(0.1, 1.0), (0.5, 1.0), (0.3, 0.0)])
def test_a_number_that_no_float_holds_is_a_multiple_of_what_it_is(step, value):
    assert _score("json_schema", {"schema": {"multipleOf": step}}, "1e999").value == value
    with pytest.raises(OverflowError, match="4000 digits"):
        _score("json_schema", {"schema": {"multipleOf": step}}, "1e99999")


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"enum": ["x"]},
        {
            "type": "array",
            "items": {"type": "number", "minimum": 0.5, "multipleOf": 0.5},
            "minItems": 2,
        },
        {"type": "string", "minLength": 4},
        {"type": "integer", "exclusiveMinimum": 3},
        {"type": "integer", "maximum": -2},
        {"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 7}}}], "type": "object"},
        {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
        {"type": ["string", "null"], "pattern": "^[a-z]{3}-\\d$"},
        {"prefixItems": [{"type": "string"}, {"type": "integer"}], "type": "array"},
    ],
)
def test_a_value_is_made_up_that_a_schema_allows(schema):
    import jsonschema

    jsonschema.validate(generate_instance(schema), schema)


def test_where_no_json_can_be_made_up_an_example_is_asked_for():
    endless = {
        "$ref": "#/$defs/x",
        "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}},
    }
    for schema in (
        endless,
        {"type": "string", "minLength": 10**12},
        {"type": "array", "minItems": 10**12},
    ):
        with pytest.raises(PlanError, match="JSON that the schema allows cannot be generated"):
            made("json_schema", {}).answers({"schema": schema})


def _calls(expected, *calls, **options):
    made_calls = tuple(
        ToolCall(name, a if isinstance(a, str) else json.dumps(a)) for name, a in calls
    )
    response = Response(text="", finish_reason="tool_calls", tool_calls=made_calls)
    return made("tool_call", options).score(expected, response).value


CITY = {"name": "weather", "arguments": {"city": "Paris", "days": 2}}


@pytest.mark.parametrize(
    ("expected", "calls", "options", "value"),
    [
        (CITY, [("weather", {"days": 2.0, "city": "Paris"})], {}, 1.0),
        (CITY, [("weather", {"city": "Paris"})], {}, 2 / 3),
        (CITY, [("weather", {"city": "Paris"})], {"partial": False}, 0.0),
        (CITY, [("weather", {"city": "Paris", "days": True})], {}, 2 / 3),
        (CITY, [("weather", {"city": "Paris", "days": 2, "unit": "C"})], {}, 3 / 4),
        (CITY, [("weather", {"city": "Paris", "days": 2, "unit": "C"})], {"other_arguments": True}, 1.0),  # noqa: E501
        (CITY, [("weather", "{not json")], {}, 1 / 4),
        (CITY, [("weather", CITY["arguments"]), ("time", {})], {}, 3 / 4),
        (CITY, [("time", CITY["arguments"])], {}, 0.0),
        (CITY, [], {}, 0.0),
        ({"name": "now"}, [("now", {"zone": "UTC"})], {}, 1.0),
        ({"name": "now", "arguments": {}}, [("now", "")], {}, 1.0),
        ({"name": "now", "arguments": {}}, [("now", {"zone": "UTC"})], {}, 1 / 2),
        ([{"name": "a"}, {"name": "b"}], [("b", {}), ("a", {})], {}, 1.0),
        ([{"name": "a"}, {"name": "b"}], [("b", {}), ("a", {})], {"ordered": True}, 0.0),
        ([{"name": "a", "arguments": {"x": i}} for i in (1, 2)], [("a", {"x": 2}), ("a", {"x": 1})], {}, 1.0),  # noqa: E501
        ([{"name": "a", "arguments": {"x": i}} for i in (1, 2)], [("a", {"x": 2})], {}, 1 / 2),
        ("no call", [("a", {})], {}, 0.0),
    ],
)  # fmt: skip
def test_calls_have_a_point_for_each_name_and_argument(expected, calls, options, value):
    assert _calls(expected, *calls, **options) == pytest.approx(value)


def test_a_text_is_no_call():
    assert _score("tool_call", "no call", "It is sunny.").outcome is Outcome.CORRECT
    assert _score("tool_call", CITY, '{"name": "weather"}').outcome is Outcome.WRONG


CHECKED = {"checks": "assert double(2) == 4", "entry_point": "double"}


@pytest.mark.parametrize(
    ("expected", "text", "outcome"),
    [
        (
            CHECKED,
            "```python\ndef double(x):\n    return 2 * x\n```\nTry it:\n```\nprint(double(4))\n```",
            "correct",
        ),
        (CHECKED, "def double(x):\n    return x + 1\n", "wrong"),
        (CHECKED, "I cannot program.", "unparsed"),
        ("assert total == 6", "Sure:\n```py\ntotal = sum([1, 2, 3])\n```", "correct"),
        ("assert total == 6", "while True: pass", "wrong"),
    ],
)
def test_code_is_run_in_the_sandbox_with_its_checks(sandbox, expected, text, outcome):
    scorer = made("code", {"time_limit_s": 2.0})
    response = Response(text=text, finish_reason="stop")
    assert not scorer.problems(expected)
    program = scorer.program(expected, response)
    if program is not None:
        response = msgspec.structs.replace(response, ran=asyncio.run(sandbox.run(program)))
    assert scorer.score(expected, response).outcome == outcome


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("choice", {"choices": ["A"]}),
        ("choice", {"choices": ["A", "a"]}),
        ("yes_no", {"yes": ["x"], "no": ["X"]}),
        ("yes_no", {"no": []}),
        ("regex", {"time_limit_s": 0.0}),
        ("numeric", {"absolute": -1.0}),
        ("code", {"time_limit_s": 0.0}),
        ("set", {"measure": "f2"}),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options):
    with pytest.raises(PlanError, match=name):
        made(name, options)


LONG = 300_000
"""Length of a text. A pattern that retries from each character would need hours for it."""


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("\n" * LONG, 0),
        (" " * LONG + "x", 1),
        ("- a\n" + "\t" * LONG, 1),
        ("\n" * LONG + "- a\n1. b", 2),
        ("a, b and " + "!" * LONG + " x", 2),
        ("x and " * (LONG // 6), 1),
    ],
)
def test_the_items_of_any_text_are_found_in_time_that_grows_with_its_length(text, items):
    assert len(items_in(text)) == items


_MARKED = re.compile(r"^\s*(?:[-*+\u2022]|\(?\d{1,4}[.)])\s+(\S.*)$", re.MULTILINE)
_BETWEEN = re.compile(r"[,;]\s+(?:and\s+)?|[,;]|\s+and\s+(?=\S+\W*$)")
"""The patterns in their most readable form, which are slow."""
PIECES = st.sampled_from(
    ["-", "*", "1", "2.", "(3)", " ", "\n", "\t", "a", "b c", ",", ";", " and ", "and", "!"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_the_patterns_of_items_find_what_plainer_ones_find(text):
    assert set_scorer._MARKED.findall(text) == _MARKED.findall(text)
    assert set_scorer._BETWEEN.split(text) == _BETWEEN.split(text)
