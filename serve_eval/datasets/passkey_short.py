"""Passkey prompts that fit into a few hundred tokens: a number hidden in sentences that do not
matter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

FILLER = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.",
    "The road is long.", "The river is wide.", "The wind is cold.", "The night is dark.", "The bread is warm.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hidden:
    """A prompt and the number that it hides, five digits."""

    prompt: str
    key: int


def hide_key(rng: random.Random, *, sentences: int, depth: float) -> Hidden:
    """`sentences` of filler with the key after the share `depth` of them (0: at the start, 1: at
    the end).
    """
    key = rng.randint(10000, 99999)
    filler = [rng.choice(FILLER) for _ in range(sentences)]
    at = round(depth * sentences)
    told = f"The pass key is {key}. Remember it. {key} is the pass key."
    return Hidden(" ".join([*filler[:at], told, *filler[at:], "What is the pass key?"]), key)
