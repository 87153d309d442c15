"""Find which one of a few given answers a text states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

_MARKS = r"[\s*_`\"'(\[{:\u201c]*(?:\\boxed\{(?:\\text\{)?[\s*_`\"'(\[]*)?"
_BEGIN, _END = r"(?<![\w+#-])", r"(?![\w+#-])"


@lru_cache(maxsize=512)
def _patterns(words: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return patterns for a word after "answer", at the beginning, and anywhere.

    The number of the group that matched is that of the word. A word matches in any case. So does a
    single letter at the beginning, and after "answer" at the end of a line. Elsewhere, a letter
    matches only in its own case, and in running text not if it can be the word "a" or "I".
    """

    def either(form: str, letter: str) -> str:
        ordered = sorted(enumerate(words, 1), key=lambda numbered: -len(numbered[1]))
        forms = (
            (n, word, letter if len(word) == 1 and word.isalpha() else form) for n, word in ordered
        )
        return "|".join(
            f"(?P<w{n}>{pattern.format(re.escape(word))})" for n, word, pattern in forms
        )

    loose, ends, in_text = (
        r"(?i:{})",
        r"(?:{0}|(?i:{0})(?=[^\w\n]*(?:\n|\Z)))",
        r"{}(?!\s+[a-z]|['\u2019])",
    )
    behind = r"(?i:\banswer\b(?:\s+(?:is|would\s+be|should\s+be))?)"
    return (
        re.compile(rf"{behind}{_MARKS}(?:{either(loose, ends)}){_END}"),
        re.compile(rf"\A{_MARKS}(?:{either(loose, loose)})(?:[*_`\"' \t]*(?:[).:,;!\]}}\n]|\Z))"),
        re.compile(rf"{_BEGIN}(?:{either(loose, in_text)}){_END}"),
    )


def find_stated(text: str, meanings: Mapping[str, T]) -> T | None:
    """Return the meaning of the word that a text states; None if it states none, or several.

    The word is the last one after "answer is" or "Answer:", else the one that the text begins with,
    else the only one that the text mentions.
    """
    words = tuple(meanings)
    behind_answer, beginning, mentioned = _patterns(words)
    found = list(behind_answer.finditer(text))[-1:]
    if not found and (match := beginning.match(text)):
        found = [match]
    said = {
        meanings[words[int(match.lastgroup[1:]) - 1]]
        for match in found or mentioned.finditer(text)
        if match.lastgroup
    }
    return said.pop() if len(said) == 1 else None
