"""Pure functions that bet that accuracy, usable answers or failures are worse than promised.

The evidence about the probes of a reference is here too, since all share one error budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from serve_eval.evidence.probes.floor import weigh_probes
from serve_eval.stats import sequential_monitor
from serve_eval.stats.betting import GRID
from serve_eval.workflows.watch.record import Bets, ProbeCounts, Seen, State, WatchAlarm

ACCURACY, USABLE, FAILURES, NUMERICS = "accuracy", "usable", "failures", "numerics"
ALPHA: Mapping[str, float] = {ACCURACY: 0.005, USABLE: 0.0015, FAILURES: 0.001}
"""Probability that these bets ever raise an alarm about a healthy endpoint."""
ALPHA_WITH_PROBES: Mapping[str, float] = {NUMERICS: 0.002, **ALPHA, ACCURACY: 0.003}
"""The same with a reference: the probes take their share from that of accuracy."""
FLOOR_ALPHA: Mapping[str, float] = {ACCURACY: 0.002, USABLE: 0.0005}
"""Probability that a learnt floor is too high. Together with either of the others this is .01."""


def levels(state: State) -> Mapping[str, float]:
    """Return the share of each bet in the error budget of a watch."""
    return ALPHA if state.probes is None else ALPHA_WITH_PROBES


def evidence(state: State, kind: str) -> float:
    """Return the natural logarithm of the wealth of a bet; 0 before the first round."""
    if kind == NUMERICS:
        return max(nats for nats, _ in weigh_spans(state))
    bets = state.bets.get(kind)
    return (
        float(sequential_monitor.log_evidence(bets.logs, bets.rounds))
        if bets is not None and bets.rounds
        else 0.0
    )


def weigh_spans(state: State) -> list[tuple[float, ProbeCounts]]:
    """Return the evidence, in nats, in the probes of the last round and in those of the cycle.

    Under the hypothesis, each is above 1 / alpha with probability at most alpha: the probes of a
    round, and the order of those of a cycle, are drawn at random, so a probe that lies beyond the
    floor again in each cycle is counted once in each. Round k and cycle k have the share
    1 / ln(e + k - 1) - 1 / ln(e + k) of the budget, since these shares sum to 1, and rounds and
    cycles have half of it each.
    """
    probes = state.probes
    if probes is None or not probes.rounds:
        return [(0.0, ProbeCounts())]
    return [
        (
            weigh_probes(counts.tried, counts.beyond, counts.far)
            + math.log(sequential_monitor.compute_starting_share(k) / 2),
            counts,
        )
        for counts, k in ((probes.latest, probes.rounds), (probes.in_cycle, probes.cycles))
    ]


def limit(state: State, kind: str) -> float:
    """Return the natural logarithm of the evidence that raises an alarm."""
    return -math.log(levels(state)[kind])


def build_alarm(
    state: State, seen: Seen, kind: str, told: str, figures: Mapping[str, float]
) -> WatchAlarm:
    """Return an alarm with its figures; those of a bet include the evidence."""
    if kind in levels(state):
        figures = {
            **figures,
            "evidence_nats": evidence(state, kind),
            "limit_nats": limit(state, kind),
            "alpha": levels(state)[kind],
        }
    return WatchAlarm(
        kind=kind, round=seen.round, at=seen.started_at, told=told, figures=dict(figures)
    )


def bet(state: State, kind: str, values: Sequence[float], null: float, highest: float) -> bool:
    """Play a round, and return True if the evidence now raises an alarm."""
    bets = state.bets.setdefault(kind, Bets(logs=[]))
    before = bets.logs or [-math.inf] * len(GRID)
    bets.rounds += 1
    bets.logs = sequential_monitor.grow(
        before, bets.rounds, sequential_monitor.gains(values, null, highest)
    ).tolist()
    return evidence(state, kind) >= limit(state, kind)


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
