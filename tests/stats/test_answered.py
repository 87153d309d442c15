"""Test the bet that few answers will be missing, against counted probabilities."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.stats.early_stop import ON_NONE, log_wealth, most_missing


def _probability(planned: int, all_missing: int, pattern: tuple[bool, ...]) -> Fraction:
    """Return the probability of a prefix with exactly these answers missing.

    It is built one prompt at a time.
    """
    found, left, missing = Fraction(1), planned, all_missing
    for lost in pattern:
        found *= Fraction(max(0, missing if lost else left - missing), left)
        left, missing = left - 1, missing - lost
    return found


def _wealth(planned: int, most: int, pattern: tuple[bool, ...]) -> float:
    return math.exp(log_wealth(planned, most, len(pattern), sum(pattern)))


@pytest.mark.parametrize(
    ("planned", "most", "length"), [(8, 2, 5), (10, 0, 6), (9, 4, 7), (7, 7, 4)]
)
def test_the_wealth_is_the_averaged_ratio_of_probabilities(
    planned: int, most: int, length: int
) -> None:
    for pattern in product((False, True), repeat=length):
        null = _probability(planned, most + 1, pattern) if most < planned else Fraction(0)
        if sum(pattern) > most:
            assert _wealth(planned, most, pattern) == 0.0
        elif not null:
            assert _wealth(planned, most, pattern) == math.inf
        else:
            weights = [ON_NONE] + [(1 - ON_NONE) / most] * most if most else [1.0]
            wanted = sum(
                w * float(_probability(planned, j, pattern) / null) for j, w in enumerate(weights)
            )
            assert _wealth(planned, most, pattern) == pytest.approx(wanted)


@given(st.integers(2, 12), st.data())
def test_it_grows_on_average_for_no_number_of_missing_ones_above_the_most(
    planned: int, data: st.DataObject
) -> None:
    most = data.draw(st.integers(0, planned - 1))
    truth = data.draw(st.integers(most + 1, planned))
    missing = data.draw(st.integers(0, most))
    looked_at = data.draw(st.integers(missing, planned - 1))
    if looked_at - missing > planned - truth:
        return
    left, lost = planned - looked_at, truth - missing
    now = math.exp(log_wealth(planned, most, looked_at, missing))
    later = 0.0
    if lost:
        later += lost / left * math.exp(log_wealth(planned, most, looked_at + 1, missing + 1))
    if left > lost:
        later += (left - lost) / left * math.exp(log_wealth(planned, most, looked_at + 1, missing))
    assert later <= now * (1 + 1e-9)


@pytest.mark.parametrize(
    ("planned", "share", "most"),
    [
        (100, 0.02, 2),
        (198, 0.02, 3),
        (30, 0.02, 0),
        (100, 0.29, 29),
        (100, 0.07, 7),
        (150, 0.02, 3),
        (9, 1.0, 9),
    ],
)
def test_the_most_is_the_largest_number_that_the_whole_run_is_judged_with(
    planned: int, share: float, most: int
) -> None:
    assert most_missing(planned, share) == most
    assert most / planned <= share
    assert most == planned or (most + 1) / planned > share


@pytest.mark.parametrize(
    ("planned", "asked"), [(30, 30), (100, 82), (198, 143), (1319, 226), (4096, 246)]
)
def test_what_it_takes_where_nothing_is_missing(planned: int, asked: int) -> None:
    """Knowing at .01 that at most 2 % will be missing takes nearly all of a small run."""
    most = most_missing(planned, 0.02)
    first = next(
        k for k in range(1, planned + 1) if log_wealth(planned, most, k, 0) >= math.log(100)
    )
    assert first == asked
