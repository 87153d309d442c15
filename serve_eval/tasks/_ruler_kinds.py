"""List the kinds of RULER by name: needles, variable tracking, frequent words and questions.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0), variable_tracking.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0),
common_words_extraction and freq_words_extraction.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0), niah.
"""

from __future__ import annotations

import math
import random
import re
import string
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

from serve_eval.tasks._ruler_ingredients import (
    ESSAYS,
    HOTPOTQA,
    NOISE,
    SHORT,
    SQUAD,
    Drawn,
    Filled,
    Ingredients,
    Kind,
    make_questions,
)

HOPS = 4
EXAMPLE_LINES = 16
"""Lines of noise of the solved example: as many as RULER finds to fit in 500 tokens of cl100k."""
SHORT_EXAMPLE_LINES = HOPS + 1
TEXT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{context}\nQuestion: Find all variables that are assigned the value {query} in the text"
    " above. Answer: According to the chain(s) of variable assignment in the text above, {number}"
    " variables are assigned the value {query}, they are: "
)


def make_variables() -> Kind:
    """Return the kind with one chain of five variables, after one solved example."""

    def fill(drawn: Drawn, size: int, ingredients: Ingredients) -> Filled:
        rng = drawn.rng
        lines = SHORT_EXAMPLE_LINES if drawn.length < 2048 else EXAMPLE_LINES
        shown = _draw_names(rng, 3)
        example = format_chain(rng, shown, str(rng.randrange(10000, 99999)), lines)
        asked = _draw_names(rng, 5)
        question = format_chain(rng, asked, str(rng.randrange(10000, 99999)), size)
        return Filled(format_with_example(example, shown, question), tuple(asked))

    return Kind(fill=fill, least=HOPS + 1, max_tokens=30, spread=48)


def format_chain(rng: random.Random, names: list[str], value: str, size: int) -> str:
    """Return the question with a chain in which each name gets the value of the one before."""
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {b} = VAR {a} " for a, b in pairwise(names)]
    places = sorted(rng.sample(range(size), len(chain)))
    return format_prompt(chain, places, value, size)


def format_prompt(chain: list[str], places: list[int], value: str, size: int) -> str:
    """Return the question with each assignment before the line of noise of its place."""
    lines = [NOISE] * size
    for already, (place, assignment) in enumerate(zip(places, chain, strict=True)):
        lines.insert(place + already, assignment)
    context = "\n".join(lines).replace(". \n", ".\n")
    return TEXT.format(context=context, query=value, number=len(chain))


def format_with_example(example: str, shown: list[str], question: str) -> str:
    """Return the question after a solved one."""
    return f"{example} {' '.join(shown)}\n\n{question}"


def _draw_names(rng: random.Random, letters: int) -> list[str]:
    """Return different names of capital letters, none of which is the word VAR."""
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
        names.pop("VAR", None)
    return list(names)


COMMON = 10
COMMON_TEXT = (
    "Below is a numbered list of words. In these words, some appear more often than others."
    " Memorize the ones that appear most often.\n{context}\nQuestion: What are the 10 most common"
    " words in the above list? Answer: The top 10 words that appear most often in the list are:"
)
CODED_TEXT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most"
    " frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please"
    " ignore the dots '....'. What are the three most frequently appeared words in the above coded"
    " text? Answer: According to the coded text above, the three most frequently appeared words"
    " are:"
)
ALPHA = 2.0
ZETA = math.pi**2 / 6
"""Riemann's zeta function at ALPHA: the sum of all weights."""
LETTERS = 6
TOKENS_PER_CODED_WORD = 50
"""Tokens of the length for each word of the vocabulary."""
CODED_ANSWER = 50


def make_common_words() -> Kind:
    """Return the kind with ten words that are ten times as frequent as the others.

    Above the number of known words, all are repeated more often, where RULER draws from another
    list.
    """

    def fill(drawn: Drawn, size: int, ingredients: Ingredients) -> Filled:
        short = drawn.length < SHORT
        words, rng = ingredients.words.all, drawn.rng
        shown = rng.sample(words, 20 if short else 40)
        often, seldom = (3, 1) if short else (10, 3)
        example = list_words(rng, shown, often, seldom)
        copies = -(-size // len(words))
        asked = rng.sample(words, max(COMMON + 1, -(-size // copies)))
        often, seldom = (6, 1) if short else (30, 3)
        listed = list_words(rng, asked, often * copies, seldom * copies)
        return Filled(format_common(example, shown[:COMMON], listed), tuple(asked[:COMMON]))

    return Kind(fill=fill, least=COMMON + 1, max_tokens=120)


def list_words(rng: random.Random, words: Sequence[str], often: int, seldom: int) -> list[str]:
    """Return the first ten words `often` and the others `seldom` times, in random order."""
    listed = [*words[:COMMON]] * often + [*words[COMMON:]] * seldom
    rng.shuffle(listed)
    return listed


def format_common(example: Sequence[str], solved: Sequence[str], listed: Sequence[str]) -> str:
    """Return the question about a list, after a solved one."""
    one = COMMON_TEXT.format(context=_number(example))
    return f"{one} {_number(solved)}\n{COMMON_TEXT.format(context=_number(listed))}"


def _number(words: Sequence[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def make_coded_words() -> Kind:
    """Return the kind with words of random letters, whose frequencies fall as 1 / rank²."""

    def fill(drawn: Drawn, size: int, ingredients: Ingredients) -> Filled:
        rng = drawn.rng
        count = max(4, (drawn.length - CODED_ANSWER) // TOKENS_PER_CODED_WORD)
        drawn_words: dict[str, None] = {}
        while len(drawn_words) < count:
            drawn_words["".join(rng.choices(string.ascii_lowercase, k=LETTERS))] = None
        vocabulary = ["...", *[*drawn_words][1:]]
        text = repeat_by_rank(vocabulary, size)
        rng.shuffle(text)
        return Filled(CODED_TEXT.format(context=" ".join(text)), tuple(vocabulary[1:4]))

    return Kind(fill=fill, least=60, max_tokens=CODED_ANSWER)


def repeat_by_rank(vocabulary: Sequence[str], size: int) -> list[str]:
    """Return each word as often as its rank gives of `size`, rounded down."""
    counts = (int(size * rank**-ALPHA / ZETA) for rank in range(1, len(vocabulary) + 1))
    return [word for word, n in zip(vocabulary, counts, strict=True) for _ in range(n)]


Haystack = Literal["noise", "essay"]

SAME_WITH_NOISE = "niah_single_2"
"""The kind that differs from niah_single_1 by the essays alone."""


def list_kinds(haystack: Haystack) -> Mapping[str, Kind]:
    """Return all kinds. Those with essays in RULER have this haystack."""
    return {
        "niah_single_1": make_needles("noise", "words", "numbers"),
        SAME_WITH_NOISE: make_needles(haystack, "words", "numbers"),
        "niah_single_3": make_needles(haystack, "words", "uuids"),
        "niah_multikey_1": make_needles(haystack, "words", "numbers", keys=4),
        "niah_multikey_2": make_needles("needle", "words", "numbers"),
        "niah_multikey_3": make_needles("needle", "uuids", "uuids"),
        "niah_multivalue": make_needles(haystack, "words", "numbers", values=4),
        "niah_multiquery": make_needles(haystack, "words", "numbers", queries=4),
        "vt": make_variables(),
        "cwe": make_common_words(),
        "fwe": make_coded_words(),
        "qa_1": make_questions(SQUAD, least=1),
        "qa_2": make_questions(HOTPOTQA, least=10),
    }


NeedleHaystack = Literal["noise", "essay", "needle"]
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
    haystack: NeedleHaystack,
    key: Word,
    value: Word,
    *,
    keys: int = 1,
    values: int = 1,
    queries: int = 1,
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
            format_needle_prompt(
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


def format_needle_prompt(value: Word, context: str, asked: list[str], *, several: bool) -> str:
    """Return the text with its question. RULER asks for one value in the singular."""
    query = f"{', '.join(asked[:-1])}, and {asked[-1]}" if len(asked) > 1 else asked[0]
    if several:
        return SEVERAL.format(type=value, context=context, query=query)
    return ONE.format(type=value.removesuffix("s"), context=context, query=query)


def hide(
    rng: random.Random,
    needles: list[str],
    size: int,
    haystack: NeedleHaystack,
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
