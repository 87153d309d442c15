"""Columns of a page's data: each text once, beginnings that prompts share once, lengths as in JS.

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
NO_TEXT = -1
"""Code of a missing text."""


class TextColumn:
    """A column of texts: each different text once, and a code per row.

    Texts longer than `most` characters lose their middle; `shortened` counts them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most, self.shortened = most, 0
        self._places: dict[str, int] = {}
        self._codes: list[int] = []

    def add(self, text: str | None) -> None:
        """Add the text of the next row."""
        if text is None:
            self._codes.append(NO_TEXT)
            return
        kept = shorten(text, self._most)
        self.shortened += kept is not text
        self._codes.append(self._places.setdefault(kept, len(self._places)))

    @property
    def different(self) -> int:
        """Number of different texts."""
        return len(self._places)

    def to_json(self) -> dict[str, object] | None:
        """Return the column for a script, or None if no row has a text."""
        return {"values": list(self._places), "codes": self._codes} if self._places else None


class PromptColumn:
    """The prompts of the rows, each without the beginning that an earlier one has.

    `turns` has the role and the length of each turn of a chat; a prompt that is a text has none.
    `cut` are the rows whose prompts lost their middle.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.cut: list[int] = []
        self._head = PrefixHead(LEAST_SHARED)
        self._shared: list[int] = []
        self._rest = TextColumn()
        self._rows = 0
        self._turns: list[list[list[object]] | None] = []

    def add(self, prompt: Prompt | None) -> None:
        """Add the prompt of the next row; None if it is not known."""
        roles = [] if isinstance(prompt, str) or prompt is None else [one.role for one in prompt]
        texts = [] if prompt is None else [prompt] if isinstance(prompt, str) else _say(prompt)
        kept = [shorten(text, self._most) for text in texts]
        if any(a is not b for a, b in zip(kept, texts, strict=True)):
            self.cut.append(self._rows)
        whole = "".join(kept)
        shared = 0 if prompt is None else self._head.count_shared(whole)
        if prompt is not None:
            self._head.take(whole, shared)
        self._shared.append(count_units(whole[:shared]))
        self._rest.add(None if prompt is None else whole[shared:])
        self._rows += 1
        self._turns.append(
            [[role, count_units(text)] for role, text in zip(roles, kept, strict=True)]
            if roles
            else None
        )

    def to_json(self) -> dict[str, object]:
        """Return the column for a script."""
        return {"shared": self._shared, "rest": self._rest.to_json(), "turns": self._turns}


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
