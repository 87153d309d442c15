"""The answer is a set of items: a JSON list, a list of lines, or one with commas.

The score is F1 or another measure of it.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._blocks import find_json
from serve_eval.scorers._expected import (
    FULL,
    find_wrong,
    grade_value,
    is_text,
    items_of,
    kind,
    place,
    place_items,
    value_of,
)
from serve_eval.scorers._plain_text import plain

PRECISION, RECALL = "precision", "recall"
# Both read any text in linear time: each run of white space is matched only from its start.
_MARKED = re.compile(r"^[^\S\n]*+(?:[-*+\u2022]|\(?\d{1,4}[.)])\s++(\S.*)$", re.MULTILINE)
_BETWEEN = re.compile(r"[,;]\s+(?:and\s+)?|[,;]|(?<!\s)\s++and\s++(?=\S++\W*+$)")


def scorer(
    *, measure: Literal["f1", "precision", "recall", "exact"] = "f1", ignore_case: bool = True
) -> Scorer:
    """Return a scorer that gives `measure` of the items.

    Precision is the share of the given items that are expected, recall the share of the expected
    items that are given, F1 the harmonic mean; exact needs both. Order and repeats do not matter,
    nor does punctuation around words.
    """

    def form(item: object) -> str:
        return plain(str(item), ignore_case=ignore_case)

    def score(expected: object, response: Response) -> Score:
        given = {item for each in items_in(response.text) if (item := form(each))}
        wanted = {form(item) for item in items_of(expected)}
        if not given:
            return Score(
                value=0.0, outcome=Outcome.UNPARSED, parts={PRECISION: 0.0, RECALL: 0.0, FULL: 0.0}
            )
        common = len(given & wanted)
        precision, recall, both = (
            common / len(given),
            common / len(wanted),
            2 * common / (len(given) + len(wanted)),
        )
        full = float(given == wanted)
        value = {"f1": both, "precision": precision, "recall": recall, "exact": full}[measure]
        missing, wrong = recall < 1.0, precision < 1.0
        mode = "no item right" if not common else "items missing" if not wrong else "items wrong"
        mode = "items missing and wrong" if common and missing and wrong else mode
        parts = {PRECISION: precision, RECALL: recall, FULL: full}
        return grade_value(value, "; ".join(sorted(given)), parts, mode=mode)

    def problems(expected: object) -> list[str]:
        if not isinstance(value_of(expected), list) or not items_of(expected):
            told = f"must be a list of items, such as [TP53, BRCA1], not {kind(value_of(expected))}"
            return [f"{place(expected)} {told}"]
        return [
            f"{where} must be a text with more than punctuation; it is {kind(item)}"
            for where, item in place_items(expected)
            if not is_text(item) or not form(item)
        ]

    def answers(expected: object) -> tuple[str, str]:
        right = json.dumps([str(item) for item in items_of(expected)])
        return right, find_wrong(score, expected)

    return Scorer(version=2, score=score, answers=answers, problems=problems, scoring="inline")


def items_in(text: str) -> list[object]:
    """Return the items of an answer.

    They are those of a JSON list (the whole text, a fenced block, or the text between brackets),
    else the lines with a bullet or a number, else the last line with commas, after its colon, else
    the lines.
    """
    start, end = text.find("["), text.rfind("]")
    for candidate in (text, text[start : end + 1]) if 0 <= start < end else (text,):
        if isinstance(found := find_json(candidate), list):
            return [item for item in found if isinstance(item, str | int | float)]
    if marked := _MARKED.findall(text):
        return marked
    lines = [line for line in text.splitlines() if line.strip()]
    with_commas = [line for line in lines if _BETWEEN.search(line)]
    if with_commas:
        return list(_BETWEEN.split(with_commas[-1].rpartition(": ")[2]))
    return [line.rpartition(": ")[2] for line in lines]
