"""Convert texts to the form in which answers are compared."""

from __future__ import annotations

from serve_eval.scorers._markup import strip_latex

_BEFORE = "\"'`*_([{,;:!?\u201c\u2018\u201e\u00ab\u00bf\u00a1"
_BEHIND = "\"'`*_)]},;:!?.\u201d\u2019\u201c\u2018\u00bb\u2026"
"""Characters around a word that are not part of it. A sign, a currency, C++ and .5 keep theirs."""


def plain(text: str, *, ignore_case: bool = True, ignore_punctuation: bool = True) -> str:
    """Return a text with single spaces, without markup and punctuation, in lower case."""
    words = (strip_latex(text) if ignore_punctuation else text).split()
    if ignore_punctuation:
        words = [word for each in words if (word := each.lstrip(_BEFORE).rstrip(_BEHIND))]
    joined = " ".join(words)
    return joined.casefold() if ignore_case else joined
