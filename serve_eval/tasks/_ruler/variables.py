"""Fill the prompts of variable tracking: a chain of assignments between lines of noise.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0), variable_tracking.
"""

from __future__ import annotations

import random
import string
from itertools import pairwise

from serve_eval.tasks._ruler.ingredients import Ingredients
from serve_eval.tasks._ruler.kind import NOISE, Drawn, Filled, Kind

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
