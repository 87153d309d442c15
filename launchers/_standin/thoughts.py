"""Forms of thoughts that servers differ in: who opens them, how long they are, what they hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from serve_eval.launchers._standin.model import decode, encode

OPEN, CLOSE = "<think>", "</think>"
BEGINNING = (
    "Okay, let me think about this. The user asks a question, and I have to find out what is wanted"
    " before I write an answer to it. So let me begin with the first part."
)
LOOPED_CHARS = 40_000
"""Length of thoughts that repeat themselves: more than a smoke test has room for."""
WORDS = ("maybe", "so", "wait,", "then", "it", "could", "be", "7", "or", "12.", "First", "no,")


class ThoughtsForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the thoughts of a server that `thinks`."""

    opened: bool = False
    """The chat template ends in <think>, so that an answer begins within its thoughts."""
    words: int | None = None
    """Words of thought, instead of those of the request's effort."""
    holds: str = ""
    """Text within the thoughts, such as a stop string or an answer that is given up again."""
    unclosed: bool = False
    """A fault: the model ends its message without having ended its thoughts."""
    repeats: str = ""
    """A fault: the thoughts repeat this text until any usual limit cuts them."""


def shape_thoughts(thoughts: Sequence[int], form: ThoughtsForm, drawn: str = "") -> list[int]:
    """Return the ids of thoughts in another form; none if there are none.

    Thoughts of a given number of words begin alike, and go on as `drawn` chooses.
    """
    if not thoughts or form == ThoughtsForm():
        return list(thoughts)
    inner, _, behind = decode(thoughts).removeprefix(OPEN).partition(CLOSE)
    if form.words is not None:
        inner = _draw_words(form.words, drawn)
    inner += form.repeats * (LOOPED_CHARS // max(1, len(form.repeats)))
    middle = len(inner) // 2 // 3 * 3
    inner = inner[:middle] + form.holds + inner[middle:]
    return encode(f"{'' if form.opened else OPEN}{inner}{'' if form.unclosed else CLOSE}{behind}")


def _draw_words(count: int, drawn: str) -> str:
    """Return words of thought: BEGINNING, and after it the words of a generator."""
    rng = random.Random(drawn)
    begun = BEGINNING.split()[:count]
    return " ".join(["", *begun, *rng.choices(WORDS, k=count - len(begun)), ""])
