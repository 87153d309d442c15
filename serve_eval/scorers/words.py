"""The answer has certain words: one point per entry, by any synonym (`dose|dosage`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from serve_eval.schema import Response, Score, Scorer
from serve_eval.scorers._expected import (
    FULL,
    WORDS,
    find_wrong,
    grade_value,
    is_text,
    items_of,
    kind,
    place,
    place_items,
)
from serve_eval.scorers._plain_text import check_alone, clean

_PATTERN = frozenset(r".^$*+?{}[]\|()")
"""Characters that BioChatter does not read literally, since it searches for words as patterns."""


def scorer(
    *, ignore_case: bool = True, whole_words: bool = False, as_biochatter: bool = False
) -> Scorer:
    """Return a scorer that gives the share of entries found.

    An entry may be part of a longer word, unless `whole_words` is set. `as_biochatter` counts like
    BioChatter's benchmark: the answer loses its `.?!`, synonyms are a list within the list, and for
    an entry that is a text any of its letters counts. Raises PlanError for other options with it.
    """
    check_alone("words", as_biochatter, ignore_case, not whole_words)
    either = _biochatters if as_biochatter else _own

    def score(expected: object, response: Response) -> Score:
        entries = items_of(expected, WORDS)
        text = clean(response.text) if as_biochatter else response.text
        matches = [
            _pattern(either(entry), ignore_case, whole_words).search(text) for entry in entries
        ]
        found = [match.group() for match in matches if match]
        value = len(found) / len(entries)
        mode = "words missing" if found else "all words missing"
        return grade_value(value, "; ".join(found), {FULL: float(value == 1.0)}, mode=mode)

    def problems(expected: object) -> list[str]:
        if not items_of(expected, WORDS):
            return [
                f"{place(expected, WORDS)} is an empty list: write words, such as [aspirin,"
                " dose|dosage]"
            ]
        if as_biochatter:
            return [
                line
                for where, entry in place_items(expected, WORDS)
                if (line := _unlike(entry, where))
            ]
        return [
            f"{where} must be a word, or synonyms such as dose|dosage; it is {kind(entry)}"
            for where, entry in place_items(expected, WORDS)
            if not is_text(entry) or not either(entry)
        ]

    def answers(expected: object) -> tuple[str, str]:
        entries = items_of(expected, WORDS)
        right = ", ".join(
            entry if as_biochatter and isinstance(entry, str) else either(entry)[0]
            for entry in entries
        )
        return right, find_wrong(score, expected)

    return Scorer(version=1, score=score, answers=answers, problems=problems, scoring="inline")


def _own(entry: object) -> tuple[str, ...]:
    return tuple(synonym for each in str(entry).split("|") if (synonym := each.strip()))


def _biochatters(entry: object) -> tuple[str, ...]:
    """Return a list as it is, and a text by its letters.

    BioChatter joins both with `|` to a pattern.
    """
    return tuple(map(str, entry)) if isinstance(entry, list | tuple | str) else (str(entry),)


def _unlike(entry: object, where: str) -> str | None:
    """Return why BioChatter would not search for the entry as written; None if it would."""
    texts: Sequence[object] = entry if isinstance(entry, list | tuple) else [entry]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        return f"{where} must be a word or a list of synonyms with as_biochatter, not {kind(entry)}"
    odd = next((text for text in texts if not _PATTERN.isdisjoint(str(text))), None)
    return (
        None
        if odd is None
        else f"{where} must be plain words: BioChatter reads {odd!r} as a regular expression"
    )


@lru_cache(maxsize=4096)
def _pattern(either: tuple[str, ...], ignore_case: bool, whole_words: bool) -> re.Pattern[str]:
    pattern = "|".join(map(re.escape, either))
    return re.compile(
        rf"(?<!\w)(?:{pattern})(?!\w)" if whole_words else pattern,
        re.IGNORECASE if ignore_case else 0,
    )
