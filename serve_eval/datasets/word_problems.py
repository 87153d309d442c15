"""Generate word problems in GSM8K's form to train and judge the embedded model.

A problem has a start, one to four steps of plus and minus with numbers below 100 and totals below
200, and a question. Its operands alone decide the split, so no problem of the test was seen in
training under any names and words.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]

NAMES = (
    "Amara", "Bela", "Chidi", "Dora", "Emre", "Farah", "Goran", "Hana",
    "Ivo", "Jun", "Kofi", "Lena", "Mira", "Nils", "Oona", "Pavel",
    "Quinn", "Rosa", "Sami", "Tove", "Umar", "Vera", "Wim", "Yara",
)  # fmt: skip
THINGS = (
    "apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets", "beads",
    "cards", "stones", "nuts",
)  # fmt: skip
MORE = (
    "{name} finds {n} more.",
    "{name} buys {n} {things}.",
    "A friend brings {n} more {things}.",
    "{name} wins {n}.",
)
LESS = (
    "{name} gives {n} away.",
    "{name} loses {n} {things}.",
    "{name} sells {n} of them.",
    "{n} {things} break.",
)
MOST = 200
"""Upper limit of totals (exclusive)."""
TEST_SHARE = 10
"""One in TEST_SHARE operand tuples belongs to the test."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem. `solution` has one equation per line and ends with `#### N`, the `answer`."""

    question: str
    solution: str
    answer: int


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Yield problems of one split endlessly. The same seed gives the same problems."""
    rng = random.Random(f"word problems:{split}:{seed}")
    while True:
        numbers = _numbers(rng)
        if split_of(numbers) == split:
            yield _describe(rng, numbers)


def split_of(numbers: tuple[int, ...]) -> Split:
    """Return the split of a tuple of operands."""
    return "test" if zlib.crc32(repr(numbers).encode()) % TEST_SHARE == 0 else "train"


def _numbers(rng: random.Random) -> tuple[int, ...]:
    """Return the start and the signed change of every step.

    The total stays above zero and below MOST.
    """
    total = _size(rng)
    found = [total]
    for _ in range(rng.randint(1, 4)):
        change = _size(rng)
        if total > 1 and (rng.random() < 0.5 or total + change >= MOST):
            change = -min(change, rng.randint(1, total - 1))
        found.append(change)
        total += change
    return tuple(found)


def _size(rng: random.Random) -> int:
    """Return a number of two digits or, one in four times, of one digit."""
    return rng.randint(2, 9) if rng.random() < 0.25 else rng.randint(10, 99)


def _describe(rng: random.Random, numbers: tuple[int, ...]) -> Problem:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    total, *changes = numbers
    story, lines = [f"{name} has {total} {things}."], []
    for change in changes:
        said = rng.choice(MORE if change > 0 else LESS)
        story.append(said.format(name=name, n=abs(change), things=things))
        lines.append(f"{total}{change:+d}={total + change}")
        total += change
    story.append(f"How many {things} does {name} have now?")
    return Problem(" ".join(story), "\n".join([*lines, f"#### {total}"]), total)
