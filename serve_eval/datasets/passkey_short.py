"""Generate passkey prompts of a few hundred tokens: a number hidden in irrelevant sentences."""

from __future__ import annotations

import random
from dataclasses import dataclass

FILLER = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
    "There and back again.", "The road is long.", "The river is wide.", "The wind is cold.",
    "The night is dark.", "The bread is warm.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hidden:
    """A prompt and the five-digit number that it hides."""

    prompt: str
    key: int


def hide_key(rng: random.Random, *, sentences: int, depth: float) -> Hidden:
    """Hide a key in filler after the share `depth` of the sentences (0: at the start)."""
    key = rng.randint(10000, 99999)
    filler = [rng.choice(FILLER) for _ in range(sentences)]
    at = round(depth * sentences)
    told = f"The pass key is {key}. Remember it. {key} is the pass key."
    return Hidden(" ".join([*filler[:at], told, *filler[at:], "What is the pass key?"]), key)
