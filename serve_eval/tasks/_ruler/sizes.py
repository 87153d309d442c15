"""Choose the size of haystacks so that prompts have a given number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable

CLOSE = 0.02
"""Share of a length that may stay unused, so that few prompts must be counted."""
MOST_COUNTS = 40
"""Prompts that are counted at most for one size."""
_TOKEN = re.compile(r"[A-Za-z]{1,4}|\s(?=[0-9])|[0-9]{1,2}|[^\sA-Za-z0-9]")

_Point = tuple[int, int]
"""A size with the tokens of its prompt."""
Tokens = Callable[[int], int]
"""Counts the tokens of the prompt with a haystack of that size."""


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many than too few.

    A token has up to four letters of a word or two digits of a number here; the space before a
    number is one too.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def find_size(tokens: Tokens, least: int, budget: int, first: int | None = None) -> int | None:
    """Return a size whose prompt uses nearly all of a budget of tokens.

    It is the largest one, or one with at most CLOSE of the budget unused. None: the least size
    exceeds the budget. `first` is a guess.
    """
    aim = budget * (1 - CLOSE / 2)
    fits: _Point | None = None
    exceeds: _Point | None = None
    counted: list[_Point] = []
    size = max(least, first or least)
    for turn in range(MOST_COUNTS):
        counted.append((size, tokens(size)))
        if counted[-1][1] > budget:
            exceeds = counted[-1]
        else:
            fits = counted[-1]
            if fits[1] >= budget * (1 - CLOSE):
                break
        if exceeds is None:
            size = max(size + 1, _guess(counted[-2:], aim))
        elif exceeds[0] == least or (fits is not None and exceeds[0] == fits[0] + 1):
            break
        elif fits is None:
            size = max(least, min(size - 1, _guess(counted[-2:], aim)))
        else:
            guess = _guess([fits, exceeds], aim) if turn % 3 else (fits[0] + exceeds[0]) // 2
            size = max(fits[0] + 1, min(exceeds[0] - 1, guess))
    return None if fits is None else fits[0]


def _guess(counted: list[_Point], aim: float) -> int:
    """Return the size with `aim` tokens, on the line through two counted sizes."""
    (before, few), (size, count) = counted[0], counted[-1]
    if (count - few) * (size - before) <= 0:
        before, few = 0, 0
    return int(size + (aim - count) * (size - before) / (count - few or 1))
