"""The answer matches regular expressions: one point per part; a pair needs either of the two.

The engine is the package `regex`, which reads what `re` reads and ends a search that takes too
long: with `re` one answer could block a run permanently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.schema import Response, Score, Scorer
from serve_eval.scorers._examples import LONGEST, build_match, shortest
from serve_eval.scorers._expected import (
    FULL,
    PARTS,
    find_wrong,
    grade_value,
    items_of,
    kind,
    place,
    place_items,
)

EXAMPLE = "example"
"""Key of a mapping for a text that has all the parts, if none can be generated."""
TIMED_OUT = "timed out"
"""Part of a score: the share of answers for which a search was ended."""


def scorer(*, ignore_case: bool = False, time_limit_s: float = 0.5) -> Scorer:
    """Return a scorer that gives the share of parts found anywhere in the answer.

    A search that takes `time_limit_s` seconds is ended and has no point. Raises PlanError for an
    invalid limit.
    """
    if not 0.0 < time_limit_s <= 60.0:
        raise PlanError("regex: `time_limit_s` must be above 0 and at most 60 seconds")

    def score(expected: object, response: Response) -> Score:
        parts = items_of(expected, PARTS)
        searches = [_search(part, response.text, ignore_case, time_limit_s) for part in parts]
        found = [text for text, _ in searches if text is not None]
        ended = any(late for _, late in searches)
        value = len(found) / len(parts)
        mode = TIMED_OUT if ended else "parts missing" if found else "all parts missing"
        return grade_value(
            value, "; ".join(found), {FULL: float(value == 1.0), TIMED_OUT: float(ended)}, mode=mode
        )

    def full_marks(expected: object) -> Callable[[str], bool]:
        return lambda text: score(expected, Response(text=text, finish_reason="stop")).value == 1.0

    def problems(expected: object) -> list[str]:
        if not items_of(expected, PARTS):
            return [
                f"{place(expected, PARTS)} is an empty list: write regular expressions, such as"
                " ['RETURN \\w+']"
            ]
        wrong = [
            told
            for where, part in place_items(expected, PARTS)
            for told in _problems(part, where, ignore_case)
        ]
        example = expected.get(EXAMPLE) if isinstance(expected, Mapping) else None
        if (
            not wrong
            and example is not None
            and not (isinstance(example, str) and full_marks(expected)(example))
        ):
            wrong = [
                f"expected.{EXAMPLE} must be a text that has all of {place(expected, PARTS)}; it"
                " lacks some"
            ]
        return wrong

    def answers(expected: object) -> tuple[str, str]:
        example = expected.get(EXAMPLE) if isinstance(expected, Mapping) else None
        right = (
            example
            if isinstance(example, str)
            else _make_up(items_of(expected, PARTS), full_marks(expected))
        )
        return right, find_wrong(score, expected)

    return Scorer(version=1, score=score, answers=answers, problems=problems)


def _search(
    part: object, text: str, ignore_case: bool, time_limit_s: float
) -> tuple[str | None, bool]:
    """Return what the first matching alternative finds, and whether an earlier search timed out."""
    late = False
    for pattern in _either(part):
        try:
            match = _compile(pattern, ignore_case).search(text, timeout=time_limit_s)
        except TimeoutError:
            late = True
            continue
        if match:
            return match.group(), late
    return None, late


def _either(part: object) -> Sequence[str]:
    return [str(one) for one in part] if isinstance(part, list | tuple) else [str(part)]


@lru_cache(maxsize=4096)
def _compile(pattern: str, ignore_case: bool) -> Any:
    import regex

    return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)


def _problems(part: object, where: str, ignore_case: bool) -> list[str]:
    alternatives = part if isinstance(part, list | tuple) else [part]
    if not alternatives or not all(isinstance(one, str) and one for one in alternatives):
        named = next((one for one in alternatives if not isinstance(one, str) or not one), part)
        return [
            f"{where} must be a regular expression, or a list of alternatives, not {kind(named)}"
        ]
    import regex

    for pattern in map(str, alternatives):
        if shortest(pattern) > LONGEST:  # the engine would expand it and fill the memory
            return [
                f"{where} matches only texts of {shortest(pattern)} characters or more: {pattern!r}"
            ]
        try:
            everywhere = _compile(pattern, ignore_case).fullmatch("", timeout=1.0) is not None
        except (regex.error, OverflowError, RecursionError) as error:
            return [f"{where} is not a regular expression: {error} in {pattern!r}"]
        except TimeoutError:
            everywhere = False
        if everywhere:
            return [f"{where} matches the empty text, so every answer gets its point: {pattern!r}"]
    return []


def _make_up(parts: Sequence[object], full_marks: Callable[[str], bool]) -> str:
    texts = [
        next((text for one in _either(part) if (text := build_match(one)) is not None), "")
        for part in parts
    ]
    for between in ("\n", " ", ""):
        if full_marks(between.join(texts)):
            return between.join(texts)
    raise PlanError(
        "a text that these regular expressions match cannot be generated",
        hint=f"Write one that matches all of them as expected.{EXAMPLE}.",
    )
