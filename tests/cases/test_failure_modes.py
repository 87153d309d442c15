"""Failure modes of answers: by the answer as a whole, by its scorer, and by its text."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.cases.case_scorers import (
    _CODE,
    _NO_ANSWER,
    CASE,
    FORMAT,
    OTHER,
    PARTIAL,
    TRUNCATED,
    failure_mode,
    text_mode,
)
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import (
    ExecutionResult,
    ExitReason,
    Outcome,
    Response,
    Sample,
    Score,
    ToolCall,
)
from serve_eval.storage.scores import encode
from tests.evaluation.test_capabilities import prepared
from tests.root import ROOT
from tests.scorers.test_offered import made


@pytest.mark.parametrize(
    ("expected", "text", "mode"),
    [
        ("Paris", "paris", "case"),
        ("TP53", "tp53 ", "case"),
        ("f(x)", "f(x))", "format"),
        ("New York", "NewYork", "format"),
        ("1,234", "1234", "format"),
        ("seven", "7", "format"),
        ("7", "seven", "format"),
        ("Paris", "The capital is Paris.", "partial match"),
        ("Paris, France", "paris", "partial match"),
        ("B", "It is B.", "other"),
        ("Paris", "London", "other"),
        ("Paris", "It has 3 names", "other"),
        ("dog", "hound", "other"),
        ("...", "?", "other"),
    ],
)
def test_texts_are_told_apart(expected, text, mode):
    assert text_mode(expected, text) == mode


def _response(text="", finish="stop", **more):
    return Response(text=text, finish_reason=finish, **more)


WRONG = Score(value=0.0, outcome=Outcome.WRONG)


@pytest.mark.parametrize(
    ("response", "score", "mode"),
    [
        (_response(), Score(value=0.0, outcome=Outcome.EMPTY), "empty"),
        (_response(refusal="no"), Score(value=0.0, outcome=Outcome.REFUSED), "refused"),
        (
            _response(reasoning="hm"), Score(value=0.0, outcome=Outcome.REASONING_ONLY),
            "reasoning only",
        ),
        (_response("par", "length"), WRONG, "truncated"),
        (
            _response("par", "length"), Score(value=0.0, outcome=Outcome.WRONG, mode="said so"),
            "truncated",
        ),
        (_response("paris"), Score(value=0.0, outcome=Outcome.WRONG, mode="said so"), "said so"),
        (
            _response("x", ran=ExecutionResult(ended=ExitReason.TIMEOUT, exit=None)), WRONG,
            "code timed out",
        ),
        (_response("hm"), Score(value=0.0, outcome=Outcome.UNPARSED), "unparsed"),
        (_response("paris"), WRONG, "case"),
        (_response("lutetia!"), WRONG, "format"),
        (_response("London"), WRONG, "other"),
        (_response("London"), Score(value=0.2, outcome=Outcome.PARTIAL), "partial match"),
    ],
)  # fmt: skip
def test_what_became_of_the_answer_comes_before_its_text(response, score, mode):
    assert failure_mode({"answer": ["Paris", "Lutetia"]}, response, score) == mode


@pytest.mark.parametrize(
    ("name", "options", "expected", "text", "mode"),
    [
        ("words", {}, ["aspirin", "dose|dosage"], "the dosage", "words missing"),
        ("words", {}, ["aspirin", "dose|dosage"], "no idea", "all words missing"),
        ("regex", {}, ["MATCH", "RETURN"], "MATCH (n)", "parts missing"),
        ("regex", {}, ["MATCH", "RETURN"], "SELECT", "all parts missing"),
        ("regex", {"time_limit_s": 0.05}, [r"(a|aa)+$"], "a" * 60 + "b", "timed out"),
        ("set", {}, ["a", "b"], '["a"]', "items missing"),
        ("set", {}, ["a", "b"], "a, b, c", "items wrong"),
        ("set", {}, ["a", "b"], "- a\n- c", "items missing and wrong"),
        ("set", {}, ["a", "b"], "c", "no item right"),
        ("choice", {}, "B", "Answer: C", "another choice"),
        ("choice", {}, "B", "Who knows?", "unparsed"),
        ("yes_no", {}, True, "No.", "the opposite"),
        ("numeric", {}, 7, "It is 8", "another number"),
        ("json_schema", {}, {"equals": [1]}, "[2]", "another value"),
        ("json_schema", {}, {"schema": {"type": "array"}}, "{}", "not of the schema"),
        ("json_schema", {}, {"equals": [1]}, "[2", "unparsed"),
        ("exact", {"ignore_case": False}, "Paris", "paris", "case"),
        ("any_of", {"scorer": "words"}, [["a", "b"], ["q"]], "a", "words missing"),
    ],
)
def test_scorers_say_what_they_know_better(name, options, expected, text, mode):
    response = _response(text)
    assert failure_mode(expected, response, made(name, options).score(expected, response)) == mode


CALL = {"name": "weather", "arguments": {"city": "Paris"}}


@pytest.mark.parametrize(
    ("options", "expected", "calls", "mode"),
    [
        ({}, CALL, (), "no tool called"),
        ({}, "no call", (ToolCall("weather"),), "a tool called"),
        ({}, CALL, (ToolCall("time"),), "other tools"),
        ({}, CALL, (ToolCall("weather", "{city"),), "arguments are no JSON"),
        ({}, CALL, (ToolCall("weather", '{"city": "Lyon"}'),), "other arguments"),
        (
            {"ordered": True},
            [{"name": "a"}, {"name": "b"}],
            (ToolCall("b"), ToolCall("a")),
            "another order",
        ),
    ],
)
def test_calls_fail_in_ways_of_their_own(options, expected, calls, mode):
    response = _response("Let me see.", tool_calls=calls)
    assert (
        failure_mode(expected, response, made("tool_call", options).score(expected, response))
        == mode
    )


def test_every_mode_stands_on_the_page():
    modes = {
        parameters[-1]
        for test in (test_scorers_say_what_they_know_better, test_calls_fail_in_ways_of_their_own)
        for parameters in test.pytestmark[0].args[1]
    }
    modes |= {
        *_CODE.values(),
        CASE,
        FORMAT,
        PARTIAL,
        OTHER,
        TRUNCATED,
        *(o.value.replace("_", " ") for o in _NO_ANSWER),
    }
    page = re.sub(r"\s+", " ", (ROOT / "docs/own-questions.md").read_text())
    assert [mode for mode in modes - {"code passed"} if f"`{mode}`" not in page] == []


@given(expected=st.text(), text=st.text())
def test_any_two_texts_have_a_mode(expected, text):
    assert text_mode(expected, text) in ("case", "format", "partial match", "other")


# --------------------------------------------------------------------------------------------------
# in the records


def _task():
    exact = made("exact", {})
    return replace(
        prepared().task,
        score=lambda sample, response: exact.score(sample.target, response),
        failure_mode=lambda sample, response, score: failure_mode(sample.target, response, score),
    )


def test_every_failing_iteration_has_its_mode_and_the_report_counts_them():
    lines = []

    class Kept:
        def write(self, record, /):
            lines.append(encode(record))

    accumulator = ScoreAccumulator(
        _task(), [Sample(id="1", prompt="?", target="Paris")], Kept(), repeats=4
    )
    for i, answer in enumerate(
        (_response("Paris"), _response("It is Paris"), _response(), _response("in Paris"))
    ):
        accumulator.add(i, answer)
    assert [json.loads(line).get("mode") for line in lines] == [
        None,
        "partial match",
        "empty",
        "partial match",
    ]
    assert accumulator.result().modes == {"partial match": 2, "empty": 1}


def test_a_task_that_does_not_tell_has_no_modes():
    lines = []

    class Kept:
        def write(self, record, /):
            lines.append(encode(record))

    accumulator = ScoreAccumulator(
        replace(_task(), failure_mode=None), [Sample(id="1", prompt="?", target="Paris")], Kept()
    )
    accumulator.add(0, _response("London"))
    assert "mode" not in json.loads(lines[0])
    assert accumulator.result().modes == {}
