"""Quote words of commands that people copy from a terminal, a page or a summary into sh. Pure.

A quoted word holds nothing that a terminal obeys, that `report.text.clean` removes or that Markdown
reads as the end of a line: such a character is written as `"$(printf '\\033')"`, which every sh
replaces by it. A newline stays in its quotes, since $(...) removes it at an end.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from os import fsencode
from pathlib import Path

_HIDDEN = re.compile(
    r"[\x01-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+"
)
"""Characters that are not seen, or that change what is seen, without tab and newline."""


def quote_word(text: str) -> str:
    """Return a text as one word of sh, whatever its characters.

    A NUL, which no argument can hold, is left out, and so is half of a surrogate pair.
    """
    text = text.replace("\x00", "")
    pieces, end = [], 0
    for found in _HIDDEN.finditer(text):
        if plain := text[end : found.start()]:
            pieces.append(shlex.quote(plain))
        if escaped := "".join(f"\\{byte:03o}" for byte in _encode(found[0])):
            pieces.append(f"\"$(printf '{escaped}')\"")
        end = found.end()
    if plain := text[end:]:
        pieces.append(shlex.quote(plain))
    return "".join(pieces) or "''"


def quote_path(path: Path | str) -> str:
    """Return a path as a word that no command takes for an option."""
    text = str(path)
    return quote_word(f"./{text}" if text.startswith("-") else text)


def quote_argument(text: str) -> str:
    """Return a text as the last argument of a command of ours, even if it looks like an option."""
    return f"-- {quote_word(text)}" if text.startswith("-") else quote_word(text)


def join_words(words: Iterable[str]) -> str:
    """Return words as one command."""
    return " ".join(map(quote_word, words))


def _encode(text: str) -> bytes:
    """Return the bytes of a text, with those that a file name had where they are no UTF-8."""
    try:
        return fsencode(text)
    except UnicodeEncodeError:
        return text.encode(errors="ignore")
