"""What every named scorer is tried with: expectations that it takes, some with options, and some that it refuses."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tried(NamedTuple):
    expected: Any
    options: dict[str, Any] = {}


TAKEN: dict[str, list[Tried]] = {
    "exact": [
        Tried("Paris"),
        Tried({"answer": "New York City."}),
        Tried(42),
        Tried("(...)", {"ignore_punctuation": False}),
        Tried("C++", {"ignore_case": False}),
    ],
    "choice": [
        Tried("B"),
        Tried({"answer": "c"}),
        Tried("type 2b", {"choices": ["type 2", "type 2b", "type 1"]}),
        Tried("I", {"choices": ["I", "II", "A"]}),
    ],
    "yes_no": [Tried("yes"), Tried(False), Tried({"answer": "No"}), Tried("nein", {"yes": ["ja"], "no": ["nein"]})],
    "words": [
        Tried({"words_in_response": ["aspirin", "dose|dosage|amount"]}),
        Tried(["cat", "I"], {"whole_words": True, "ignore_case": False}),
        Tried("C++"),
        Tried({"answer": [7, "do not know"]}),
    ],
    "regex": [
        Tried({"parts_of_query": ["MATCH", r"WHERE \w+\.name\s*=\s*['\"]BRCA1['\"]", ["LIMIT 1$", "RETURN [^x]{2}"]]}),
        Tried(r"^\d{3}-[a-f]+(?:,|;)$"),
        Tried(["GENE"], {"ignore_case": True}),
        Tried({"answer": [r"(?=.*alpha)(?=.*beta)"]}),
        Tried({"parts_of_query": [r"^(?!.*DROP).*SELECT$"], "example": "SELECT"}),
    ],
    "any_of": [
        Tried(["Paris", "Lutetia"]),
        Tried({"answer": [3, "4"]}, {"scorer": "exact"}),
        Tried([["a", "b"], ["c"]], {"scorer": {"words": {"whole_words": True}}}),
    ],
}

REFUSED: dict[str, list[Tried]] = {
    "exact": [Tried(True), Tried("..."), Tried("  ")],
    "choice": [Tried("E"), Tried(True), Tried("AB")],
    "yes_no": [Tried("perhaps"), Tried(["yes"])],
    "words": [Tried("|"), Tried([["a"]]), Tried([""])],
    "regex": [Tried("("), Tried(["a", "b*"]), Tried([["a", 1]]), Tried({"parts_of_query": ["a"], "example": "b"})],
    "any_of": [Tried("Paris"), Tried(["Paris", None])],
}
"""Beside those that every scorer refuses."""
