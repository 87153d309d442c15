"""Draw random numbers, words and codes for made-up rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LETTERS = "ABCDEFGHIJ"
_STARTS = ("ba", "do", "fe", "gu", "ki", "lo", "ma", "ne", "po", "ri", "sa", "tu", "ve", "wi", "zo")
_ENDS = ("dan", "fel", "gor", "lin", "mar", "nor", "pet", "ros", "sim", "ten", "vul")


@dataclass(slots=True, kw_only=True)
class Drawn:
    """A row under construction: its code, random numbers, and right answer once set."""

    code: str
    rng: random.Random
    gold: str | None = None

    def right(self, text):
        """Keep the right answer."""
        self.gold = text

    def number(self, least, most):
        """Return a number, both ends included."""
        return self.rng.randint(least, most)

    def pick(self, *options):
        """Return one of these."""
        return self.rng.choice(options)

    def word(self):
        """Return a word of two or three syllables."""
        return "".join(
            self.rng.choice(_STARTS) for _ in range(self.rng.randint(1, 2))
        ) + self.rng.choice(_ENDS)

    def name(self):
        """Return a name."""
        return self.word().capitalize()

    def phrase(self):
        """Return two to four words."""
        return " ".join(self.word() for _ in range(self.rng.randint(2, 4)))

    def sentence(self):
        """Return a sentence of about seven words."""
        return f"The {self.phrase()} was a {self.phrase()}."

    def question(self):
        """Return a question that holds the code."""
        return f"What of {self.code} is the {self.phrase()}?"


Row = Callable[[Drawn], Mapping[str, Any]]
"""Makes a row."""
