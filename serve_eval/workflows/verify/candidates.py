"""Cut texts into candidates for probes: prefixes that end with a word. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

SHORTEST, LONGEST = 130, 450
"""Lengths of prefixes in tokens: more than two blocks of 64 tokens, so that a KV transfer is
tested, with all remainders."""
CHARS_PER_TOKEN = 2.0
"""A first guess, until the server has counted."""
ANSWER_ROOM = 40
"""Tokens of the context that are left free for the answer and a wrong guess of the length."""
_END_OF_WORD = re.compile(r"\w(?=\s)")


class CandidateCutter:
    """Cuts one prefix after the other, each of texts in random order.

    Each begins with another text, as long as there are such, so that a prefix cache holds no long
    beginning in common. `per_token` is the number of characters per token, and `longest` the length
    in tokens that the server allows.
    """

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        self._texts, self._rng = texts, random.Random(f"{seed}:verify")
        self._order = self._rng.sample(range(len(texts)), len(texts))
        self._number = 0
        self.per_token, self.longest = CHARS_PER_TOKEN, LONGEST
        self._room: int | None = None

    def fit(self, context_tokens: int) -> None:
        """Limit the length of prefixes to what a context of `context_tokens` has room for."""
        self._room = max(ANSWER_ROOM, context_tokens - ANSWER_ROOM)
        self.longest = min(self.longest, self._room)

    def choose(self, texts: Sequence[str]) -> str:
        """Return one of several texts, at random."""
        return self._rng.choice(texts)

    def cut(self) -> str:
        """Return the next prefix."""
        shortest = min(SHORTEST, self.longest // 2)
        return self._cut(self._rng.uniform(shortest, self.longest))

    def cut_long(self, tokens: int) -> str | None:
        """Return a prefix of about that length, or None if the context has no room for it."""
        return None if self._room is not None and tokens > self._room else self._cut(tokens)

    def _cut(self, tokens: float) -> str:
        wanted = int(tokens * self.per_token)
        parts = [self._texts[self._order[self._number % len(self._order)]]]
        self._number += 1
        while sum(map(len, parts)) <= wanted:
            parts.append(self._texts[self._rng.choice(self._order)])
        text = "\n\n".join(parts)
        ends = [found.end() for found in _END_OF_WORD.finditer(text, wanted // 2, wanted)]
        return text[: ends[-1] if ends else wanted]
