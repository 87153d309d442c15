"""Fill the prompts of needles in a haystack: keys with values between lines of something else.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0), niah.
"""

from __future__ import annotations

import random
import re
import uuid
from functools import partial
from typing import Literal

from serve_eval.tasks._ruler.ingredients import ESSAYS, NOISE, Drawn, Filled, Ingredients, Kind

Haystack = Literal["noise", "essay", "needle"]
Word = Literal["numbers", "words", "uuids"]

NEEDLE = "One of the special magic {type} for {key} is: {value}."
ONE = (
    "A special magic {type} is hidden within the following text. Make sure to memorize it. I will"
    " quiz you about the {type} afterwards.\n{context}\nWhat is the special magic {type} for"
    " {query} mentioned in the provided text? The special magic {type} for {query} mentioned in"
    " the provided text is"
)
SEVERAL = (
    "Some special magic {type} are hidden within the following text. Make sure to memorize it. I"
    " will quiz you about the {type} afterwards.\n{context}\nWhat are all the special magic {type}"
    " for {query} mentioned in the provided text? The special magic {type} for {query} mentioned"
    " in the provided text are"
)
DEPTHS = tuple(round(100 * i / 39) for i in range(40))
"""Percentages of an essay's sentences after which a needle can be."""
_SENTENCE = re.compile(r"(?<=[.!?]) ")


def make_needles(
    haystack: Haystack, key: Word, value: Word, *, keys: int = 1, values: int = 1, queries: int = 1
) -> Kind:
    """Return the kind with that many needles: `values` for each of `keys`, of which some are asked.

    In the haystack `needle` each line is a needle itself, with a key that is never asked.
    """
    keys = max(keys, queries)

    def fill(drawn: Drawn, size: int, ingredients: Ingredients) -> Filled:
        rng, draw = drawn.rng, partial(_draw, drawn.rng, ingredients)
        known: dict[str, list[str]] = {}
        while len(known) < keys:
            known.setdefault(draw(key), [draw(value) for _ in range(values)])
        needles = [
            NEEDLE.format(type=value, key=name, value=one)
            for name, ones in known.items()
            for one in ones
        ]
        rng.shuffle(needles)
        asked = rng.sample(list(known), queries)
        return Filled(
            format_prompt(
                value,
                hide(rng, needles, size, haystack, ingredients, (key, value)),
                asked,
                several=queries * values > 1,
            ),
            tuple(one for name in asked for one in known[name]),
        )

    count = keys * values
    return Kind(
        fill=fill,
        least=20 if haystack == "essay" else count,
        max_tokens=128,
        spread=None if haystack == "needle" else 8 + 4 * count,
        reads=ESSAYS if haystack == "essay" else "",
    )


def format_prompt(value: Word, context: str, asked: list[str], *, several: bool) -> str:
    """Return the text with its question. RULER asks for one value in the singular."""
    query = f"{', '.join(asked[:-1])}, and {asked[-1]}" if len(asked) > 1 else asked[0]
    if several:
        return SEVERAL.format(type=value, context=context, query=query)
    return ONE.format(type=value.removesuffix("s"), context=context, query=query)


def hide(
    rng: random.Random,
    needles: list[str],
    size: int,
    haystack: Haystack,
    ingredients: Ingredients,
    types: tuple[Word, Word],
) -> str:
    """Return the haystack with the needles at drawn places."""
    if haystack == "essay":
        return insert_in_sentences(
            ingredients.essay(size),
            needles,
            sorted(rng.sample(DEPTHS, len(needles))),
        )
    lines = [NOISE] * size
    if haystack == "needle":
        lines = [
            NEEDLE.format(
                type=types[1],
                key=_draw(rng, ingredients, types[0]),
                value=_draw(rng, ingredients, types[1]),
            )
            for _ in range(size)
        ]
    return insert_in_lines(lines, needles, sorted(rng.sample(range(size), len(needles))))


def insert_in_lines(lines: list[str], needles: list[str], places: list[int]) -> str:
    """Return lines with needles before those of the ascending `places`, the last needle first."""
    for place, needle in zip(reversed(places), needles, strict=True):
        lines.insert(place, needle)
    return "\n".join(lines)


def insert_in_sentences(text: str, needles: list[str], depths: list[int]) -> str:
    """Return a text with needles after that percentage of its sentences."""
    sentences = _SENTENCE.split(text.strip())
    parts, last = [], 0
    for depth, needle in zip(depths, needles, strict=True):
        place = int(len(sentences) * (depth / 100))
        parts += [" ".join(sentences[last:place]), needle]
        last = place
    return " ".join((*parts, " ".join(sentences[last:])))


def _draw(rng: random.Random, ingredients: Ingredients, kind: Word) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    words = ingredients.words
    return f"{rng.choice(words.adjectives)}-{rng.choice(words.nouns)}"
