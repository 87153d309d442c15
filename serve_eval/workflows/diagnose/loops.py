"""Recognise answers that repeat themselves to their end. Pure.

The drift alarm of a run has a flag of its own for repetitive answers, from 400 characters on. Here
short answers count too, since one side of a comparison is judged by the other's rate.
"""

from __future__ import annotations

LONGEST, TIMES, LEAST_CHARS = 80, 4, 24
"""Characters of the longest period, and the repeats and characters that make a loop."""


def is_loop(text: str) -> bool:
    """Return True if a text ends with one piece written again and again, such as `!!!!`."""
    end = text.rstrip()
    for period in range(1, min(LONGEST, len(end) // TIMES) + 1):
        times = max(TIMES, -(-LEAST_CHARS // period))
        if len(end) >= times * period and end.endswith(end[-period:] * times):
            return True
    return False
