"""Choose the size of haystacks so that prompts have a given number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable

CLOSE = 0.02
"""Share of a length that may stay unused, so that few prompts must be counted."""
MOST_COUNTS = 12
"""Prompts that are counted at most for one size."""
_TOKEN = re.compile(r"[A-Za-z]{1,4}|[0-9]{1,2}|[^\sA-Za-z0-9]")

Tokens = Callable[[int], int]
"""Counts the tokens of the prompt with a haystack of that size."""


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many than too few.

    A token has up to four letters of a word or two digits of a number here.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def find_size(tokens: Tokens, least: int, budget: int, first: int | None = None) -> int | None:
    """Return a size whose prompt uses nearly all of a budget of tokens.

    It is the largest one, or one with at most CLOSE of the budget unused. None: the least size
    exceeds the budget. `first` is a guess.
    """
    fits: tuple[int, int] | None = None
    exceeds: tuple[int, int] | None = None
    size = max(least, first or least)
    for _ in range(MOST_COUNTS):
        count = tokens(size)
        if count <= budget:
            fits = (size, count)
            if count >= budget * (1 - CLOSE):
                break
        else:
            exceeds = (size, count)
            if size == least:
                break
        if fits is not None and exceeds is not None and exceeds[0] - fits[0] <= 1:
            break
        size = _next(fits, exceeds, least, budget)
    return None if fits is None else fits[0]


def _next(
    fits: tuple[int, int] | None, exceeds: tuple[int, int] | None, least: int, budget: int
) -> int:
    """Return the next size to try, between those that are known to fit and to exceed."""
    aim = budget * (1 - CLOSE / 2)
    if fits is None:
        assert exceeds is not None
        size, count = exceeds
        return max(least, min(size - 1, int(size * aim / count)))
    if exceeds is None:
        size, count = fits
        return max(size + 1, int(size * aim / count))
    (low, few), (high, many) = fits, exceeds
    guess = low + int((high - low) * (aim - few) / (many - few))
    return min(high - 1, max(low + 1, guess))
