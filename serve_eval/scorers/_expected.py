"""What a case expects, as the named scorers read it.

It is a bare value (`expected: Paris`), or a mapping that has it under `answer`. What BioChatter's
files call otherwise is read under those names first: `words_in_response` by words, `parts_of_query`
by regex. What else stands in such a mapping belongs to other scorers, as a judge's summary does,
and is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from serve_eval.errors import PlanError
from serve_eval.schema import Score

ANSWER, WORDS, PARTS = "answer", "words_in_response", "parts_of_query"
_WRONG = ("I do not know.", "nothing of the kind", "?", "0", "-", "none", "\u00a7", "1e9")
"""Texts of which one scores nothing wherever an answer can be wrong at all."""


def value_of(expected: object, name: str = ANSWER) -> object:
    """The value under `name` or `answer`, else `expected` itself."""
    if isinstance(expected, Mapping):
        for key in (name, ANSWER):
            if key in expected:
                return expected[key]
    return expected


def place(expected: object, name: str = ANSWER) -> str:
    """Where the value stands, for messages."""
    found = isinstance(expected, Mapping) and next(
        (key for key in (name, ANSWER) if key in expected), None
    )
    return f"expected.{found}" if found else "expected"


def kind(value: object) -> str:
    """What a value is in the words of YAML."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false (YAML makes that of yes and no: put it in quotes to have a text)"
        case float():
            return (
                "a number with a decimal point (YAML keeps its value alone, of 3.10 that is 3.1:"
                " put it in quotes)"
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
    """Whether it is a text, or a whole number, which stands for its digits. One with a decimal
    point may have been written otherwise than it is read: 3.10 as 3.1.
    """
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, str) and bool(value.strip()))
    )


def text_problems(expected: object, name: str = ANSWER) -> list[str]:
    """What is wrong with an expectation that has to be one text."""
    value = value_of(expected, name)
    if is_text(value):
        return []
    return [
        f"{place(expected, name)} must be a text, such as `expected: Paris`, and is {kind(value)}"
    ]


def text_of(expected: object, name: str = ANSWER) -> str:
    """The one text that is expected."""
    return str(value_of(expected, name))


def items_of(expected: object, name: str = ANSWER) -> Sequence[object]:
    """A list of what is expected, where one thing may stand without a list around it."""
    value = value_of(expected, name)
    return value if isinstance(value, list | tuple) else [value]


def place_items(expected: object, name: str = ANSWER) -> list[tuple[str, object]]:
    """The items of that list with where each of them stands, for messages."""
    where, value = place(expected, name), value_of(expected, name)
    return (
        [(f"{where}[{i}]", v) for i, v in enumerate(value)]
        if isinstance(value, list | tuple)
        else [(where, value)]
    )


def find_zero_answer(score: Callable[[str], Score], *also: str) -> str:
    """The first of a few wrong answers that has no point. Raises PlanError when each of them has
    one.
    """
    for text in (*also, *_WRONG):
        if score(text).value == 0.0:
            return text
    raise PlanError(
        "no answer could be found that scores nothing",
        hint="Expect something that not every answer has.",
    )
