"""Pure functions that bet that accuracy, usable answers or failures are worse than promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from serve_eval.stats import sequential_monitor
from serve_eval.stats.betting import GRID
from serve_eval.workflows.watch.record import Bets, State

ACCURACY, USABLE, FAILURES = "accuracy", "usable", "failures"
ALPHA: Mapping[str, float] = {ACCURACY: 0.005, USABLE: 0.0015, FAILURES: 0.001}
"""Probability that these bets ever raise an alarm about a healthy endpoint."""
FLOOR_ALPHA: Mapping[str, float] = {ACCURACY: 0.002, USABLE: 0.0005}
"""Probability that a learnt floor is too high. Together with ALPHA this is .01."""


def evidence(state: State, kind: str) -> float:
    """Return the natural logarithm of the wealth of a bet; 0 before the first round."""
    bets = state.bets.get(kind)
    return (
        float(sequential_monitor.log_evidence(bets.logs, bets.rounds))
        if bets is not None and bets.rounds
        else 0.0
    )


def limit(kind: str) -> float:
    """Return the natural logarithm of the evidence that raises an alarm."""
    return -math.log(ALPHA[kind])


def bet(state: State, kind: str, values: Sequence[float], null: float, highest: float) -> bool:
    """Play a round, and return True if the evidence now raises an alarm."""
    bets = state.bets.setdefault(kind, Bets(logs=[]))
    before = bets.logs or [-math.inf] * len(GRID)
    bets.rounds += 1
    bets.logs = sequential_monitor.grow(
        before, bets.rounds, sequential_monitor.gains(values, null, highest)
    ).tolist()
    return evidence(state, kind) >= limit(kind)


def highest_gain(kind: str, usual: Mapping[int, float], asked: Sequence[int]) -> float:
    """Return how far the mean of a round can exceed the usual one, over all possible subsets.

    Subsets are spread by accuracy. For other shares, the prompts with the most room may come
    together. A round that an older version drew at random may have more room than a spread subset.
    """
    if kind == ACCURACY:
        most = sequential_monitor.highest_mean(list(usual.values()), len(asked))
    else:
        most = math.fsum(
            sorted((1.0 - x for x in usual.values()), reverse=True)[: len(asked)]
        ) / len(asked)
    return max(most, math.fsum(1.0 - usual[i] for i in asked) / len(asked))
