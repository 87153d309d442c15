"""Test the contract of every named scorer, and its place in docs/own-questions.md.

The example of its row in docs/own-questions.md is the first, so a new scorer needs no entry here.
More are accepted, some of these with options, and some are refused.

A new file in serve_eval/scorers is covered once docs/own-questions.md has a row for it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_eval.launchers._http.answers import Generated
from serve_eval.launchers._http.requests import understand
from serve_eval.launchers._simulated import answers
from serve_eval.plugins import registry
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.schema import (
    ExecutionResult,
    ExitReason,
    Judgement,
    Need,
    Outcome,
    Response,
    Sample,
    ToolCall,
)
from tests.root import ROOT

PAGE = (ROOT / "docs/own-questions.md").read_text("utf-8")
TABLE = PAGE.partition("| scorer |")[2].partition("\n\n")[0]
ROWS = [
    [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in TABLE.splitlines()[2:]
]
"""Of each scorer its name, `expected`, options, an example, an answer and the score of that."""


class Tried(NamedTuple):
    expected: Any
    options: dict[str, Any] = {}


def list_accepted(name):
    """Return what a scorer accepts: the example of the page, and those listed here."""
    shown = [Tried(yaml.safe_load(row[3].strip("`"))) for row in ROWS if row[0] == name]
    return shown + TAKEN.get(name, [])


LINKED = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}
"""A schema of a list that ends with null; the endless branch comes first."""

TAKEN = {
    "exact": [
        Tried("Paris"),
        Tried({"answer": "New York City."}),
        Tried(42),
        Tried("(...)", {"ignore_punctuation": False}),
        Tried("C++", {"ignore_case": False}),
        Tried({"answer": "left side"}, {"as_biochatter": True}),
    ],
    "choice": [
        Tried("B"),
        Tried({"answer": "c"}),
        Tried("type 2b", {"choices": ["type 2", "type 2b", "type 1"]}),
        Tried("I", {"choices": ["I", "II", "A"]}),
    ],
    "yes_no": [
        Tried("yes"),
        Tried(False),
        Tried({"answer": "No"}),
        Tried("nein", {"yes": ["ja"], "no": ["nein"]}),
    ],
    "words": [
        Tried({"words_in_response": ["aspirin", "dose|dosage|amount"]}),
        Tried(["cat", "I"], {"whole_words": True, "ignore_case": False}),
        Tried("C++"),
        Tried({"answer": [7, "do not know"]}),
        Tried({"words_in_response": [["air", "breath"], "oxygen"]}, {"as_biochatter": True}),
    ],
    "regex": [
        Tried(
            {
                "parts_of_query": [
                    "MATCH",
                    r"WHERE \w+\.name\s*=\s*['\"]BRCA1['\"]",
                    ["LIMIT 1$", "RETURN [^x]{2}"],
                ]
            }
        ),
        Tried(r"^\d{3}-[a-f]+(?:,|;)$"),
        Tried(["GENE"], {"ignore_case": True}),
        Tried({"answer": [r"(?=.*alpha)(?=.*beta)"]}),
        Tried({"parts_of_query": [r"^(?!.*DROP).*SELECT$"], "example": "SELECT"}),
    ],
    "set": [
        Tried(["TP53", "BRCA1", "EGFR"]),
        Tried({"answer": ["red, dark", "blue"]}, {"measure": "recall"}),
        Tried([1, "2.5"], {"measure": "precision"}),
        Tried(["a"], {"measure": "exact", "ignore_case": False}),
    ],
    "numeric": [
        Tried(42),
        Tried({"answer": "1,234.5"}, {"absolute": 0.5}),
        Tried(-6.02e23, {"relative": 0.01, "take": "first"}),
        Tried(0),
    ],
    "math": [
        Tried(42),
        Tried({"answer": "x^2 - 1"}),
        Tried("$(1, 2] \\cup \\{5\\}$", {"precision": 2}),
        Tried("\\boxed{\\text{Tuesday}}", {"time_limit_s": 2.0}),
    ],
    "rouge": [
        Tried("The dose is 5 mg per day."),
        Tried({"answer": "Aspirin thins the blood."}, {"kind": "rouge2"}),
        Tried("one two", {"kind": "rougeL"}),
    ],
    "json_schema": [
        Tried(
            {"schema": {"properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}}
        ),
        Tried({"answer": {"equals": {"a": [1, None, True]}}}),
        Tried({"schema": {"type": "array"}, "equals": [1.5]}, {"fenced": False}),
        Tried(
            {"schema": {"anyOf": [{"type": "string", "pattern": "^[A-Z]{3}$"}, {"type": "null"}]}}
        ),
        Tried({"schema": {"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["p", "q"]}}}}),
        Tried({"schema": {"enum": [1, 2.5, -3.7], "default": 1.5, "type": "number"}}),
        Tried({"schema": {"$ref": "#/$defs/node", "$defs": {"node": LINKED}}}),
    ],
    "tool_call": [
        Tried({"name": "weather", "arguments": {"city": "Paris", "days": 2}}),
        Tried([{"name": "a"}, {"name": "b", "arguments": {}}], {"ordered": True}),
        Tried(
            {"answer": [{"name": "a", "arguments": {"x": 1}}, {"name": "a", "arguments": {"x": 2}}]}
        ),
        Tried("no call", {"partial": False}),
    ],
    "code": [
        Tried(
            {
                "checks": "assert double(2) == 4",
                "entry_point": "double",
                "solution": "def double(x): return 2 * x",
            }
        ),
        Tried({"answer": {"checks": "assert x", "solution": "x = 1"}}, {"time_limit_s": 2.0}),
    ],
    "judge": [
        Tried("Paris", {"judges": [{}]}),
        Tried(
            {"answer": ["a", 1]},
            {"judges": [{}], "metrics": ["correctness", "usefulness"], "rounds": 2},
        ),
        Tried(
            {"summary": "Sleep.", "individual": None},
            {"judges": [{}], "metrics": ["correctness"], "majority": True},
        ),
    ],
    "any_of": [
        Tried(["Paris", "Lutetia"]),
        Tried({"answer": [3, "4"]}, {"scorer": "exact"}),
        Tried([["a", "b"], ["c"]], {"scorer": {"words": {"whole_words": True}}}),
    ],
}
"""Expectations that are accepted, in addition to the example of the page."""

REFUSED = {
    "exact": [
        Tried(True),
        Tried("..."),
        Tried("  "),
        Tried("?", {"as_biochatter": True}),
        Tried(7, {"as_biochatter": True}),
    ],
    "choice": [Tried("E"), Tried(True), Tried("AB")],
    "yes_no": [Tried("perhaps"), Tried(["yes"])],
    "words": [
        Tried("|"),
        Tried([["a"]]),
        Tried([""]),
        Tried(["a.b"], {"as_biochatter": True}),
        Tried([["a", 1]], {"as_biochatter": True}),
        Tried([[]], {"as_biochatter": True}),
    ],
    "regex": [
        Tried("("),
        Tried(["a", "b*"]),
        Tried("((a{1000}){1000}){1000}"),
        Tried([["a", 1]]),
        Tried({"parts_of_query": ["a"], "example": "b"}),
    ],
    "set": [Tried("a"), Tried(["..."]), Tried([True])],
    "numeric": [Tried("many"), Tried(True), Tried([1]), Tried(float("inf")), Tried("nan")],
    "math": [Tried(True), Tried("$$"), Tried("\\text{}")],
    "rouge": [Tried("\u6771\u4eac"), Tried("word", {"kind": "rouge2"}), Tried(["a b"])],
    "json_schema": [
        Tried({"schema": {"type": "nothing"}}),
        Tried({"schema": None}),
        Tried({"schema": {"$schema": 3}}),
        Tried({"schema": {"$ref": "#/nowhere"}}),
        Tried({"schema": {"items": {"$ref": "http://127.0.0.1:9/fetched.json"}}}),
        Tried({"schema": {"type": "string"}, "equals": 1}),
        Tried({"equals": 1, "shema": {}}),
        Tried({"equals": float("nan")}),
        Tried(7),
    ],
    "tool_call": [
        Tried("weather"),
        Tried({"name": "a", "arguments": [1]}),
        Tried({"name": "a", "args": {}}),
        Tried([{"arguments": {}}]),
    ],
    "code": [
        Tried("assert ("),
        Tried({"checks": "assert 1", "entry_point": "not a name"}),
        Tried({"checks": "assert 1", "solution": "def"}),
        Tried({"check": "assert 1"}),
    ],
    "judge": [Tried({"facts": ["Paris"]}, {"judges": [{}]}), Tried([[], ""], {"judges": [{}]})],
    "any_of": [Tried("Paris"), Tried(["Paris", None])],
}
"""Expectations that are refused, in addition to those that every scorer refuses."""


NAMES = registry.names(registry.SCORERS)
ACCEPTED = {name: found for name in NAMES if (found := list_accepted(name))}
"""The forms that each scorer accepts; `test_every_scorer_is_tried` names the missing scorers."""
NONSENSE = [
    None,
    {},
    [],
    "",
    {"anser": "Paris"},
    {"answer": None},
    {"answer": []},
    [None],
]
CASES = [
    pytest.param(name, one, id=f"{name}-{i}")
    for name, found in ACCEPTED.items()
    for i, one in enumerate(found)
]


def made(name, options):
    make = registry.load(registry.SCORERS, name)
    return make(**registry.check_options(make, options, name))


def scored(scorer, expected, text, ended=ExitReason.RAISED):
    """Return the score of an answer, with a result if something in it is to be run."""
    response = Response(text=text, finish_reason="stop")
    if Need.TOOLS in scorer.requires:
        response = called(response)
    if scorer.program is not None and scorer.program(expected, response) is not None:
        response = msgspec.structs.replace(response, ran=ExecutionResult(ended=ended, exit=None))
    if scorer.questions is not None and response.text.strip():
        response = judged(scorer, expected, response)
    return scorer.score(expected, response)


def judged(scorer, expected, response):
    """Add the verdicts of judges that agree with the scorer's own right answer."""
    assert scorer.questions is not None
    said = f"Verdict: {'yes' if response.text == scorer.answers(expected)[0] else 'no'}"
    asked = scorer.questions(Sample(id="1", prompt="?", target=""), expected, response)
    judgements = (
        Judgement(judge=q.judge.name, metric=q.metric, round=q.round, value=q.read(said))
        for q in asked
    )
    return msgspec.structs.replace(response, judgements=tuple(judgements))


def called(response):
    """Return the simulated endpoint's response for a text that stands for calls."""
    [tool] = [{"type": "function", "function": {"name": "any"}}]
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [tool],
        "max_tokens": 1000,
    }
    ask = understand(msgspec.json.encode(body), chat=True, models=None)
    told = answers.split_calls(Generated(response.text, "stop"), ask)
    calls = tuple(ToolCall(call.name, call.arguments) for call in told.calls)
    return Response(text=told.text or "", finish_reason=told.finish_reason, tool_calls=calls)


def test_every_scorer_is_tried():
    missing = sorted(set(NAMES) - ACCEPTED.keys())
    assert missing == [], "add a row for each to the table of docs/own-questions.md"
    gone = sorted((TAKEN.keys() | REFUSED.keys()) - set(NAMES))
    assert gone == [], "tests/scorers/test_offered.py names scorers that do not exist"


@pytest.mark.parametrize(("name", "tried"), CASES)
def test_the_right_answer_has_full_marks_and_the_wrong_one_nothing(name, tried):
    scorer = made(name, tried.options)
    assert list(scorer.problems(tried.expected)) == []
    right, wrong = scorer.answers(tried.expected)
    gold, other = (
        scored(scorer, tried.expected, right, ExitReason.PASSED),
        scored(scorer, tried.expected, wrong),
    )
    assert (gold.value, gold.outcome) == (1.0, Outcome.CORRECT)
    assert (other.value, other.outcome in (Outcome.WRONG, Outcome.UNPARSED)) == (0.0, True)
    assert right.strip()
    assert wrong.strip()


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("expected", NONSENSE, ids=repr)
def test_nonsense_is_refused_with_what_to_write(name, expected):
    told = made(name, ACCEPTED[name][0].options).problems(expected)
    assert told
    assert all(line.startswith("expected") and len(line) > 20 for line in told)


@pytest.mark.parametrize(
    ("name", "tried"),
    [pytest.param(n, t, id=f"{n}-{i}") for n in NAMES for i, t in enumerate(REFUSED.get(n, []))],
)
def test_what_is_nearly_right_is_refused_too(name, tried):
    assert made(name, tried.options).problems(tried.expected)


@pytest.mark.parametrize(("name", "tried"), CASES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_text_has_a_score_between_0_and_1(name, tried, data):
    scorer = made(name, tried.options)
    right, wrong = scorer.answers(tried.expected)
    pieces = st.one_of(
        st.text(),
        st.sampled_from([right, wrong, right[: len(right) // 2], "answer is ", "{", "\n", "1e999"]),
    )
    text = "".join(data.draw(st.lists(pieces, max_size=5)))
    score = scored(scorer, tried.expected, text)
    assert 0.0 <= score.value <= 1.0
    assert (score.outcome is Outcome.CORRECT) == (score.value == 1.0)
    assert (score.outcome is Outcome.PARTIAL) == (0.0 < score.value < 1.0)
    assert (score.answer is None) == (score.outcome is Outcome.UNPARSED)
    assert all(0.0 <= part <= 1.0 for part in score.parts.values())
    assert scored(scorer, tried.expected, text) == score


@pytest.mark.parametrize("name", ACCEPTED)
@settings(max_examples=30, deadline=None)
@given(
    expected=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["answer", "words_in_response", "schema", "name"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=6,
    )
)
def test_what_is_not_refused_can_be_scored(name, expected):
    scorer = made(name, ACCEPTED[name][0].options)
    if scorer.problems(expected):
        return
    assert 0.0 <= scored(scorer, expected, "The answer is 42, so yes.").value <= 1.0


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_scorer_says_what_it_is(name):
    assert 20 < len(registry.summary(registry.SCORERS, name)) <= 140
    options = registry.options_of(registry.function(registry.SCORERS, name))
    assert canonical({option: parameter.default for option, parameter in options.items()})
    assert made(name, ACCEPTED[name][0].options).version >= 1


def test_the_table_has_a_row_for_every_scorer_but_the_one_with_a_page_of_its_own():
    named = {*(row[0] for row in ROWS), "judge"}
    assert [name for name in NAMES if name not in named] == [], "add a row to docs/own-questions.md"
    assert named - set(NAMES) == set(), "docs/own-questions.md names scorers that do not exist"
    page = PAGE.partition("\n## Judges\n")[2].partition("\n## ")[0]
    for option in registry.options_of(registry.function(registry.SCORERS, "judge")):
        assert re.search(rf"[ `]{option}[:`]", page), option


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_example_has_the_score_that_the_page_says(row):
    name, _, _, expected, answer, points = row
    scorer = made(name, {})
    value = yaml.safe_load(expected.strip("`"))
    assert not scorer.problems(value)
    ended = ExitReason.PASSED if points == "1" else ExitReason.RAISED
    given = scored(scorer, value, answer.strip("`"), ended).value
    assert given == pytest.approx(float(points), abs=0.001), (
        f"{name} gives {answer} {given}, and its row in docs/own-questions.md says {points}"
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_option_stands_there_with_its_default(row):
    assert find_wrong_options(row) == []


def find_wrong_options(row):
    """Return what is wrong with the options of a row: those of the scorer with their defaults."""
    options = registry.options_of(registry.function(registry.SCORERS, row[0]))
    shown = [found.partition(": ") for found in re.findall(r"`([^`]+)`", row[2])]
    told = {name: value.replace('"', "") for name, colon, value in shown if colon}
    where = f"docs/own-questions.md: the row of {row[0]}"
    wrong = []
    for name, option in options.items():
        default = option.default
        written = default if isinstance(default, str) else json.dumps(default)
        written = written.replace('"', "")
        if name not in told:
            wrong.append(f"{where} lacks the option `{name}: {written}`")
        elif told[name] != written:
            wrong.append(f"{where} has `{name}: {told[name]}`, and its default is {written}")
    unknown = [name for name in told if name not in options and name.isidentifier()]
    wrong += [
        f"{where} names the option {name}, which does not exist.{registry.nearest(name, options)}"
        for name in unknown
    ]
    return wrong


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (
            "`whole_words: false`",
            "`whole_word: false`",
            [
                "lacks the option `whole_words: false`",
                "names the option whole_word, which does not exist. Did you mean 'whole_words'?",
            ],
        ),
        ("`whole_words: false`, ", "", ["lacks the option `whole_words: false`"]),
        (
            "`whole_words: false`",
            "`whole_words: true`",
            ["has `whole_words: true`, and its default is false"],
        ),
        ("`whole_words: false`", "`whole_words`", ["lacks the option `whole_words: false`"]),
    ],
)
def test_a_wrong_option_of_a_row_is_named(right, wrong, told):
    [row] = [one for one in ROWS if one[0] == "words"]
    assert right in row[2]
    changed = [*row[:2], row[2].replace(right, wrong), *row[3:]]
    said = [f"docs/own-questions.md: the row of words {one}" for one in told]
    assert find_wrong_options(changed) == said
