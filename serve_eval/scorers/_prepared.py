"""Prepare texts and words for the search for a stated answer."""

from __future__ import annotations

import re
from functools import lru_cache

from serve_eval.scorers._markup import strip_markup

_LATIN_MEETS_EASTERN = re.compile(
    r"(?<=[A-Za-z])(?=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])"
    r"|(?<=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])(?=[A-Za-z])"
)


def prepare(text: str) -> str:
    """Return the text without markup and empty lines, with one space between words."""
    text = strip_markup(text)
    if not text.isascii():
        text = _LATIN_MEETS_EASTERN.sub(" ", text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(filter(None, lines))


@lru_cache(maxsize=512)
def prepare_words(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the words without markup; None if they differ in it only, such as * and **."""
    plain = tuple(map(prepare, words))
    return None if "" in plain or len(set(plain)) < len(plain) else plain
