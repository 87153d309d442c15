"""The words for the loads at which an endpoint is broken."""

from __future__ import annotations

import pytest

from serve_eval.evidence.agreement.self_flips import name_loads
from serve_eval.workflows.load.story import count_halvings, halve

LOADS = (1, 4, 16, 64)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({16, 64}, "broken from 16 on"),
        ({64}, "broken from 64 on"),
        ({4}, "broken only at 4"),
        ({1}, "broken only at 1"),
        ({1, 4}, "broken up to 4"),
        ({4, 64}, "broken at 4 and 64"),
        ({1, 4, 16, 64}, "broken at all loads"),
        (set(), "nothing found"),
    ],
)
def test_the_pattern_of_the_loads_is_named(bad: set[int], words: str) -> None:
    assert name_loads(LOADS, bad) == words


def test_loads_without_a_proof_of_their_own_are_told_apart() -> None:
    assert name_loads(LOADS, {16, 64}, likely={64}) == (
        "broken from 16 on; likely at 64, not proved alone"
    )
    assert name_loads(LOADS, {16}, unclear={64}) == "broken from 16 on; not decided at 64"


def test_a_bisection_ends_at_neighbours_after_few_loads() -> None:
    for first in range(2, 257):
        low, high, asked = 1, 256, 0
        while (middle := halve(low, high)) is not None:
            asked += 1
            low, high = (low, middle) if middle >= first else (middle, high)
        assert high == first
        assert asked <= count_halvings(1, 256) <= 11
