"""Describe a kind of instruction: its arguments, and how an answer is checked for it."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serve_eval.tasks._instructions.english import English

Arguments = Mapping[str, Any]
Follows = Callable[[str, Arguments, English], bool]

PUNCTUATION = string.punctuation
_NO_PUNCTUATION = str.maketrans("", "", PUNCTUATION)


@dataclass(frozen=True, slots=True)
class KindCheck:
    """The check of one kind of instruction.

    `follows(text, arguments, english)` is True if the text follows it. `arguments` are the names
    that an instruction of this kind has.
    """

    arguments: tuple[str, ...]
    follows: Follows


class Checks(dict[str, KindCheck]):
    """Checks by the names of their kinds, such as punctuation:no_comma."""

    def of(self, kind: str, *arguments: str) -> Callable[[Follows], Follows]:
        """Return a decorator that adds a function as the check of a kind."""

        def add(follows: Follows) -> Follows:
            self[kind] = KindCheck(arguments, follows)
            return follows

        return add


def without_punctuation(text: str) -> str:
    """Return the text without the punctuation marks of ASCII."""
    return text.translate(_NO_PUNCTUATION)


def trim(text: str) -> str:
    """Return the text without punctuation marks and blanks at its ends."""
    return text.strip(PUNCTUATION + " ")


def plain_letters(text: str) -> str:
    """Return the text in ASCII, with letters in the place of those with marks."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
