"""The form of a kind: how one of its prompts is made, and how long its answer may be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from serve_eval.tasks._ruler.ingredients import Ingredients

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""The line that the haystack `noise` repeats."""
SHORT = 4096
"""Tokens below which RULER makes lists of words with fewer repeats."""


class Filled(NamedTuple):
    """A prompt with its answers, and the text that it shares with others ("": none)."""

    prompt: str
    answers: tuple[str, ...]
    shared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The draws of a sample: its generator, its number in its kind and its length in tokens."""

    rng: random.Random
    index: int
    length: int


Fill = Callable[[Drawn, int, Ingredients], Filled]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of prompts.

    `fill(drawn, size, ingredients)` makes a prompt whose haystack has `size` units: lines, words or
    documents. `least` is the fewest. `max_tokens` limits the answer. `spread` is the most tokens by
    which prompts of one size are taken to differ (None: they differ by more, and each is counted).
    With `part`, one of the answers is enough for full marks. `reads` names the data that it needs
    ("": none).
    """

    fill: Fill
    least: int
    max_tokens: int
    spread: int | None = None
    part: bool = False
    reads: str = ""
