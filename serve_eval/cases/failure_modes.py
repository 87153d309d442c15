"""Classify how an answer to a case failed, in one or two words that can be counted. Pure.

The categories for texts are the meaningful ones of BioChatter's benchmark: case, format, partial
match, words missing. Its category of synonyms is left out, because it accepts any two nouns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from serve_eval.schema import ExitReason, Outcome, Response, Score

CASE, FORMAT, PARTIAL, OTHER = "case", "format", "partial match", "other"
TRUNCATED = "truncated"
_CODE = {
    ExitReason.PASSED: "code passed",
    ExitReason.RAISED: "code raised",
    ExitReason.EXITED: "code exited",
    ExitReason.KILLED: "code killed",
    ExitReason.TIMEOUT: "code timed out",
}
_NO_ANSWER = (Outcome.EMPTY, Outcome.REFUSED, Outcome.REASONING_ONLY)
_DIGIT = re.compile(r"\d")


def failure_mode(expected: object, response: Response, score: Score) -> str:
    """Return the failure mode of an answer that is not correct.

    The first of these applies: the answer as a whole (empty, refused, reasoning only, truncated),
    the mode from the scorer, the result of running the answer, an unparsed answer, the difference
    of its text from the expected ones.
    """
    if score.outcome in _NO_ANSWER:
        return score.outcome.value.replace("_", " ")
    if response.truncated:
        return TRUNCATED
    if score.mode is not None:
        return score.mode
    if response.ran is not None:
        return _CODE[response.ran.ended]
    if score.outcome is Outcome.UNPARSED:
        return Outcome.UNPARSED.value
    modes = [text_mode(text, response.text) for text in _texts(expected)]
    rest = PARTIAL if score.outcome is Outcome.PARTIAL else OTHER
    return next((mode for mode in (CASE, FORMAT, PARTIAL) if mode in modes), rest)


def text_mode(expected: str, text: str) -> str:
    """Return how a text differs from the expected one.

    The difference is in case, in format (white space, punctuation, digits for words), in length
    (more or less of the same text), or other.
    """
    expected, text = expected.strip(), text.strip()
    if text.casefold() == expected.casefold():
        return CASE
    one, other = _bare(expected), _bare(text)
    if one == other and one:
        return FORMAT
    if (len(one) > 1 and one in other) or (len(other) > 1 and other in one):
        return PARTIAL
    if len(text.split()) <= len(expected.split()) and bool(_DIGIT.search(expected)) != bool(
        _DIGIT.search(text)
    ):
        return FORMAT
    return OTHER


def _bare(text: str) -> str:
    """Return only the letters and digits of a text, case-folded."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _texts(expected: object) -> Iterable[str]:
    """Yield the texts of an expectation: itself, its items, those under `answer`."""
    if isinstance(expected, Mapping):
        yield from _texts(expected.get("answer"))
    elif isinstance(expected, list | tuple):
        for one in expected:
            yield from _texts(one)
    elif isinstance(expected, str | int | float):
        yield str(expected)
