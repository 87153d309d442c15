"""Compute the length of the common beginning of two texts."""

from __future__ import annotations


def common_prefix(a: str, b: str) -> int:
    """Return the length, in characters, of the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # By bisection: slices compare at memory speed.
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixHead:
    """Find how much of each text in a sequence an earlier one has, so that it is kept once.

    The text to compare with is the head: the last one that was kept whole. Texts must share at
    least `least` characters.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._head = self._last = ""

    def count_shared(self, text: str) -> int:
        """Return how many characters of a text are left out, because the head has them."""
        least = self._least
        if len(text) < least or self._head[:least] != text[:least]:
            return 0
        shared = common_prefix(self._head, text)
        # A text that begins much more like the last one is the better head for those after it.
        closer = 2 * shared < len(text) and common_prefix(self._last, text) > 2 * shared
        return 0 if closer else shared

    def take(self, text: str, shared: int) -> None:
        """Go on behind a text that is kept without its first `shared` characters."""
        self._last, self._head = text, self._head if shared else text
