"""Test the bets on shares: exact error probabilities at every look, and power."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.distances import log_evidence_above, log_evidence_below, share_upper_bound

ALPHA = 0.01
Evidence = Callable[[int, int, float], float]


def _cross(evidence: Evidence, share: float, true: float, n: int) -> float:
    """Return the exact probability that the evidence ever exceeds 1 / ALPHA within n probes."""
    need, alive, crossed = -math.log(ALPHA), {0: 1.0}, 0.0
    for k in range(1, n + 1):
        after: dict[int, float] = {}
        for hits, p in alive.items():
            for more, chance in ((0, 1 - true), (1, true)):
                if evidence(hits + more, k - hits - more, share) >= need:
                    crossed += p * chance
                else:
                    after[hits + more] = after.get(hits + more, 0.0) + p * chance
        alive = after
    return crossed


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("part", [1.0, 0.5, 0.1])
def test_a_true_hypothesis_is_rejected_at_the_level_at_most_over_all_looks(
    share: float, part: float
) -> None:
    assert _cross(log_evidence_above, share, share * part, 100) <= ALPHA
    more = share + (1 - share) * (1 - part)
    assert _cross(log_evidence_below, share, more, 100) <= ALPHA


@pytest.mark.parametrize(
    ("share", "true", "n", "power"),
    [(0.05, 0.54, 20, 0.99), (0.05, 0.8, 8, 0.98), (0.05, 0.2, 100, 0.95), (0.01, 0.08, 120, 0.8)],
)
def test_a_false_hypothesis_is_found_soon(share: float, true: float, n: int, power: float) -> None:
    assert _cross(log_evidence_above, share, true, n) >= power


def test_a_share_without_hits_is_bounded() -> None:
    assert share_upper_bound(0, 48, ALPHA) > 0.095 > share_upper_bound(0, 50, ALPHA)
    assert share_upper_bound(0, 0, ALPHA) == 1.0
    assert share_upper_bound(5, 0, ALPHA) == 1.0
    bounds = [share_upper_bound(hits, 100 - hits, ALPHA) for hits in range(20)]
    assert bounds == sorted(bounds)
    assert all(bound > hits / 100 for hits, bound in enumerate(bounds))


@pytest.mark.parametrize(("hits", "misses", "share"), [(-1, 2, 0.1), (1, -1, 0.1), (1, 1, 0.0)])
def test_what_is_no_count_or_share_is_refused(hits: int, misses: int, share: float) -> None:
    for evidence in (log_evidence_above, log_evidence_below):
        with pytest.raises(ServeEvalError, match="do not fit"):
            evidence(hits, misses, share)
