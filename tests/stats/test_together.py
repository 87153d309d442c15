"""Test whether pairs were in flight together by chance, against enumeration."""

from __future__ import annotations

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.together import Together, compare_together

SPANS = [(0.0, 1.0), (10.0, 11.0), (0.5, 1.5), (20.0, 21.0)] + [
    (100.0 + 2 * i, 101.0 + 2 * i) for i in range(6)
]
"""Ten samples of one length, which makes five classes of two. Samples 0 and 2 were in flight
together; their contents are together in one of four permutations."""


def compare(
    *pairs: tuple[int, int], alpha: float = 1.0, seed: int = 0, draws: int = 1999
) -> Together:
    strata, weights = ["all"] * len(SPANS), [1.0] * len(pairs)
    return compare_together(SPANS, strata, pairs, weights, alpha=alpha, seed=seed, draws=draws)


def test_p_is_the_share_of_permutations_with_as_much_together() -> None:
    found = compare((0, 2))
    assert found.p == pytest.approx(0.25, abs=0.04)
    assert found.expected == pytest.approx(0.25, abs=0.04)


def test_the_pairs_in_flight_together_are_named_by_their_places() -> None:
    assert compare((4, 6), (2, 0), (0, 3), (0, 2)).observed == (3, 1)
    none = compare((4, 6))
    assert (none.p, none.observed, none.expected) == (1.0, (), 0.0)


def test_the_test_stops_at_the_first_permutation_that_is_one_too_many() -> None:
    """Of 19 draws none may reach what was seen; the first that does is the last, and p is 1/k."""
    found = [compare((0, 2), alpha=0.05, seed=seed, draws=19).p for seed in range(30)]
    assert [1.0 / p for p in found] == pytest.approx([round(1.0 / p) for p in found])
    assert {round(1.0 / p) for p in found} >= {1, 2, 3}
    assert all(p >= 0.1 or p == 0.05 for p in found)


def test_a_test_that_stops_at_a_large_alpha_has_a_p_of_one_at_most() -> None:
    strata = [f"{i}" for i in range(len(SPANS))]
    assert compare_together(SPANS, strata, [(0, 2)], [1.0], alpha=0.9, seed=0, draws=19).p == 1.0


def test_contents_are_exchanged_within_their_stratum_alone() -> None:
    strata = [f"{i}" for i in range(len(SPANS))]
    found = compare_together(SPANS, strata, [(0, 2)], [1.0], alpha=0.05, seed=0)
    assert (found.p, found.observed, found.expected) == (1.0, (0,), 1.0)


def test_too_few_permutations_for_alpha_are_refused() -> None:
    with pytest.raises(ServeEvalError, match="18 permutations"):
        compare((0, 2), alpha=0.05, draws=18)
