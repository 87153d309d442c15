"""List the expectations that every named scorer is tried with.

The example of its row in docs/scorers.md is the first, so a new scorer needs no entry here. More
are accepted, some of these with options, and some are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

PAGE = (Path(__file__).resolve().parents[2] / "docs/scorers.md").read_text("utf-8")
TABLE = PAGE.partition("| scorer |")[2].partition("\n\n")[0]
ROWS = [
    [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in TABLE.splitlines()[2:]
]
"""Of each scorer its name, `expected`, options, an example, an answer and the score of that."""


class Tried(NamedTuple):
    expected: Any
    options: dict[str, Any] = {}


def list_accepted(name: str) -> list[Tried]:
    """Return what a scorer accepts: the example of the page, and those listed here."""
    shown = [Tried(yaml.safe_load(row[3].strip("`"))) for row in ROWS if row[0] == name]
    return shown + TAKEN.get(name, [])


LINKED = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}
"""A schema of a list that ends with null; the endless branch comes first."""

TAKEN: dict[str, list[Tried]] = {
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

REFUSED: dict[str, list[Tried]] = {
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
