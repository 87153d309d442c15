"""Test whether answers differ from their first character on, which numerics seldom do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serve_eval.stats.binomial import binomial_tail
from serve_eval.stats.common_prefix import common_prefix

SHORT, SOUND_AT_START = 8, 0.3
"""Characters of an answer that has no place for a difference but its start, and the chance that a
different answer of a sound side differs from its start on."""


class AtStart(NamedTuple):
    """Hold the places of the pairs that differ at all, of those from their start on, and p."""

    differ: list[int]
    start: list[int]
    p: float


def find_at_start(pairs: Sequence[tuple[str, str]]) -> AtStart:
    """Return the pairs of texts that differ, without those that are too short to tell.

    p is the probability that this many or more differ from their start on, if each does so with
    probability SOUND_AT_START.
    """
    differ = [i for i, (a, b) in enumerate(pairs) if a != b and min(len(a), len(b)) > SHORT]
    start = [i for i in differ if common_prefix(*pairs[i]) == 0]
    return AtStart(differ, start, binomial_tail(len(start), len(differ), SOUND_AT_START))
