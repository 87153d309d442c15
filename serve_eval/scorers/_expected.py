"""Read what a case expects, and grade an answer that may be partly right.

An expectation is a bare value (`expected: Paris`), or a mapping that has it under `answer`. The
other names in BioChatter's files are read first: `words_in_response` by words, `parts_of_query` by
regex. Further keys of such a mapping belong to other scorers, such as a judge's summary, and are
not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome, Response, Score

ANSWER, WORDS, PARTS = "answer", "words_in_response", "parts_of_query"
_WRONG = ("I do not know.", "nothing of the kind", "?", "0", "-", "none", "\u00a7", "1e9")
"""Texts of which at least one has score 0 for any expectation that an answer can fail."""


def value_of(expected: object, name: str = ANSWER) -> object:
    """Return the value under `name` or `answer`, else `expected` itself."""
    if isinstance(expected, Mapping):
        for key in (name, ANSWER):
            if key in expected:
                return expected[key]
    return expected


def place(expected: object, name: str = ANSWER) -> str:
    """Return the place of the value, for messages."""
    found = isinstance(expected, Mapping) and next(
        (key for key in (name, ANSWER) if key in expected), None
    )
    return f"expected.{found}" if found else "expected"


def kind(value: object) -> str:
    """Return the kind of a value in the words of YAML."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false (YAML reads yes and no as these: put it in quotes for a text)"
        case float():
            return (
                "a number with a decimal point (YAML keeps only its value, 3.1 for 3.10: put it in"
                " quotes)"
            )
        case int():
            return "a number"
        case str():
            return "a text" if value.strip() else "an empty text"
        case Mapping():
            return (
                f"a mapping whose only keys are {', '.join(map(str, value))}"
                if value
                else "an empty mapping"
            )
        case _:
            return "a list" if value else "an empty list"


def is_text(value: object) -> bool:
    """Return True for a text, or a whole number, which stands for its digits.

    A number with a decimal point may differ from what was written: 3.10 is read as 3.1.
    """
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, str) and bool(value.strip()))
    )


def text_problems(expected: object) -> list[str]:
    """Return what is wrong with an expectation that must be one text."""
    value = value_of(expected, ANSWER)
    if is_text(value):
        return []
    return [
        f"{place(expected, ANSWER)} must be a text, such as `expected: Paris`, not {kind(value)}"
    ]


def text_of(expected: object, name: str = ANSWER) -> str:
    """Return the one expected text."""
    return str(value_of(expected, name))


def items_of(expected: object, name: str = ANSWER) -> Sequence[object]:
    """Return the list of expected items; a single item needs no list around it."""
    value = value_of(expected, name)
    return value if isinstance(value, list | tuple) else [value]


def place_items(expected: object, name: str = ANSWER) -> list[tuple[str, object]]:
    """Return the items of that list, each with its place, for messages."""
    where, value = place(expected, name), value_of(expected, name)
    return (
        [(f"{where}[{i}]", v) for i, v in enumerate(value)]
        if isinstance(value, list | tuple)
        else [(where, value)]
    )


def find_zero_answer(score: Callable[[str], Score], *also: str) -> str:
    """Return the first of a few wrong answers with score 0.

    Raises PlanError if each of them has points.
    """
    for text in (*also, *_WRONG):
        if score(text).value == 0.0:
            return text
    raise PlanError(
        "no answer with score 0 was found",
        hint="Expect something that not every answer has.",
    )


def find_wrong(score: Callable[[object, Response], Score], expected: object, *also: str) -> str:
    """Return the first of a few wrong answers that a scorer's `score` gives 0, likewise."""
    return find_zero_answer(
        lambda text: score(expected, Response(text=text, finish_reason="stop")), *also
    )


FULL = "full marks"
"""Part of a score: the share of answers with all points."""


def grade_value(
    value: float,
    answer: str | None,
    parts: Mapping[str, float] | None = None,
    *,
    mode: str | None = None,
) -> Score:
    """Return a score that is correct at 1, wrong at 0, and partial between.

    It is `unparsed` if nothing was extracted. `mode` is the way in which the answer failed, if it
    did.
    """
    if answer is None:
        outcome = Outcome.UNPARSED
    elif value >= 1.0:
        outcome = Outcome.CORRECT
    else:
        outcome = Outcome.PARTIAL if value > 0.0 else Outcome.WRONG
    return Score(
        value=value,
        outcome=outcome,
        answer=answer,
        parts=parts or {},
        mode=mode if value < 1.0 else None,
    )
