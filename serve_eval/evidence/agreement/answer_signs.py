"""Signs of damage in an answer that need no key: loops, foreign scripts, others' answers. Pure."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache

LONGEST, TIMES, LEAST_CHARS = 80, 4, 24
"""Characters of the longest period, and the repeats and characters that make a loop. The drift
alarm of a run has a flag of its own for repetitive answers, from 400 characters on; here short ones
count too, since they are judged by another side's rate."""
LEAST_LETTERS = 2
"""Letters of a foreign script that an answer needs: one may be a symbol of a formula."""
LONG_ANSWER = 20
"""Characters from which equal answers to two prompts are odd; short ones are equal by chance."""


def is_loop(text: str) -> bool:
    """Return True if a text ends with one piece written again and again, such as `!!!!`."""
    end = text.rstrip()
    for period in range(1, min(LONGEST, len(end) // TIMES) + 1):
        times = max(TIMES, -(-LEAST_CHARS // period))
        if len(end) < times * period or end[-1 - period] != end[-1]:
            continue
        if end.endswith(end[-period:] * times):
            return True
    return False


@cache
def _script(letter: str) -> str:
    """Return the first word of a letter's name, such as LATIN, CYRILLIC or CJK."""
    return unicodedata.name(letter, "?").partition(" ")[0]


def find_scripts(text: str) -> set[str]:
    """Return the scripts of which a text has LEAST_LETTERS letters or more."""
    if text.isascii():
        return set()
    counts: dict[str, int] = defaultdict(int)
    for letter in text:
        if not letter.isascii() and letter.isalpha():
            counts[_script(letter)] += 1
    return {script for script, count in counts.items() if count >= LEAST_LETTERS}


def mark_loops(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return for each text whether it repeats itself to its end."""
    return [is_loop(text) for text in texts]


def mark_scripts(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return for each text whether it has a script that no text of the other side has."""
    known = {script for text in others for script in find_scripts(text)}
    return [bool(find_scripts(text) - known) for text in texts]


def mark_shared(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return for each text whether the same long text answers another prompt too."""
    counts: dict[str, int] = defaultdict(int)
    for text in texts:
        counts[text.strip()] += 1
    return [len(text.strip()) >= LONG_ANSWER and counts[text.strip()] > 1 for text in texts]


SIGNS: Mapping[str, Callable[[Sequence[str], Sequence[str]], list[bool]]] = {
    "repeat themselves to the end": mark_loops,
    "have letters of a script that the other side never writes": mark_scripts,
    "equal the answer to another prompt": mark_shared,
}
"""The words for a sign, and a function that marks the texts of one side, given the other's."""
