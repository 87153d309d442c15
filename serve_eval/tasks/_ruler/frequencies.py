"""Fill the prompts that ask for the most frequent words of a text.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0),
common_words_extraction and freq_words_extraction.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence

from serve_eval.tasks._ruler.ingredients import Ingredients
from serve_eval.tasks._ruler.kind import SHORT, Drawn, Filled, Kind

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
