"""Columns of a page's data: each text and each paragraph of a prompt once, lengths as in JS.

A script counts a text in UTF-16 units, so that every place and length is counted that way here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from serve_eval.schema import Message, Prompt
from serve_eval.schema.media import media_url
from serve_eval.stats.common_prefix import PrefixHead

LEAST_SHARED = 64
"""Characters that two prompts must share before the second one leaves them out."""
PARAGRAPH = "\n\n"
NO_TEXT = -1
"""Code of a missing text."""


class TextColumn:
    """A column of texts: each different text once, and a code per row.

    Rows are numbered from 0; those between two that were added have no text. Texts longer than
    `most` characters lose their middle; `shortened` counts them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most, self.shortened = most, 0
        self._places: dict[str, int] = {}
        self._codes: dict[int, int] = {}

    def add(self, row: int, text: str) -> None:
        """Add the text of a row."""
        if self._most is not None and len(text) > self._most:
            text = shorten(text, self._most)
            self.shortened += 1
        places = self._places
        self._codes[row] = places.setdefault(text, len(places))

    @property
    def different(self) -> int:
        """Number of different texts."""
        return len(self._places)

    def to_json(self, rows: int) -> dict[str, object] | None:
        """Return the column with `rows` rows for a script, or None if no row has a text."""
        if not self._places:
            return None
        codes = [NO_TEXT] * rows
        for row, code in self._codes.items():
            codes[row] = code
        return {"values": list(self._places), "codes": codes}


class PromptColumn:
    """The prompts of the rows as paragraphs, each different paragraph once.

    A beginning that a prompt shares with an earlier one is cut off, too, within a paragraph.
    `turns` has the role and the length of each turn of a chat; a prompt that is a text has none.
    `cut` are the rows whose prompts lost their middle.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.cut: list[int] = []
        self._head = PrefixHead(LEAST_SHARED)
        self._places: dict[str, int] = {}
        self._rows: list[list[int] | None] = []
        self._turns: list[list[list[object]] | None] = []

    def add(self, prompt: Prompt | None) -> None:
        """Add the prompt of the next row; None if it is not known."""
        if prompt is None:
            self._rows.append(None)
            self._turns.append(None)
            return
        texts = [prompt] if isinstance(prompt, str) else _say(prompt)
        kept = [shorten(text, self._most) for text in texts]
        if any(a is not b for a, b in zip(kept, texts, strict=True)):
            self.cut.append(len(self._rows))
        places = self._places
        self._rows.append([places.setdefault(p, len(places)) for p in self._split("".join(kept))])
        self._turns.append(
            None
            if isinstance(prompt, str)
            else [[o.role, count_units(t)] for o, t in zip(prompt, kept, strict=True)]
        )

    def _split(self, whole: str) -> list[str]:
        """Return the paragraphs of a prompt, each with its end."""
        shared = self._head.count_shared(whole)
        self._head.take(whole, shared)
        if shared - max(0, whole.rfind(PARAGRAPH, 0, shared)) < LEAST_SHARED:
            shared = 0  # a paragraph ends there, or close to there
        return [one for part in (whole[:shared], whole[shared:]) for one in _cut(part) if one]

    def to_json(self) -> dict[str, object]:
        """Return the column for a script."""
        return {"parts": list(self._places), "rows": self._rows, "turns": self._turns}


def _cut(text: str) -> list[str]:
    """Return the paragraphs of a text, each with its end."""
    *before, last = text.split(PARAGRAPH)
    return [*(one + PARAGRAPH for one in before), last]


def _say(prompt: Sequence[Message]) -> list[str]:
    """Return the text of each turn, with what is kept of its media."""
    return ["\n".join([turn.text, *map(media_url, turn.media)]) for turn in prompt]


def count_units(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def shorten(text: str, most: int | None) -> str:
    """Return a text of at most about `most` characters, without its middle."""
    if most is None or len(text) <= most:
        return text
    half = most // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out:,} characters left out …]\n{text[-half:]}"


def round_off(value: float | None, digits: int) -> float | None:
    """Return a number with a few decimals; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
