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
