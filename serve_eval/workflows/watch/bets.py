"""Bet that accuracy, usable answers or failures are worse than promised, also by hour of day.

The evidence about the probes of a reference is here too, since all share one error budget.

Many endpoints are worse at some hours: more load, other batches, another replica. A baseline of one
night knows nothing of that, and the first busy hour looks like a fault. One that covers a day is
compared by its worst hours instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from serve_eval.evidence.probe_floor import weigh_probes
from serve_eval.stats import betting
from serve_eval.stats.betting import GRID, mean_lower_bound
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
        float(betting.log_evidence(bets.logs, bets.rounds))
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
            + math.log(betting.compute_starting_share(k) / 2),
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
    bets.logs = betting.grow(before, bets.rounds, betting.gains(values, null, highest)).tolist()
    return evidence(state, kind) >= limit(state, kind)


def highest_gain(kind: str, usual: Mapping[int, float], asked: Sequence[int]) -> float:
    """Return how far the mean of a round can exceed the usual one, over all possible subsets.

    Subsets are spread by accuracy. For other shares, the prompts with the most room may come
    together. A round that is no spread subset may have more room.
    """
    if kind == ACCURACY:
        most = betting.highest_mean(list(usual.values()), len(asked))
    else:
        most = math.fsum(
            sorted((1.0 - x for x in usual.values()), reverse=True)[: len(asked)]
        ) / len(asked)
    return max(most, math.fsum(1.0 - usual[i] for i in asked) / len(asked))


BLOCK_HOURS = 3
BLOCKS = 24 // BLOCK_HOURS
"""Blocks of a day. Each needs enough answers of its own for a bound."""
FULL_DAY = 24.0
"""Hours of a baseline that covers a day."""


def find_block(at: str) -> int:
    """Return the block of the day, in UTC, of a time in ISO 8601."""
    return datetime.fromisoformat(at).astimezone(UTC).hour // BLOCK_HOURS


def measure_hours(first: str, last: str) -> float:
    """Return the hours from one time in ISO 8601 to another."""
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds() / 3600.0


def list_unknown(state: State) -> list[int]:
    """Return the blocks of the day in which the baseline has no answer."""
    known = {block for blocks in state.blocks for block in blocks}
    return [block for block in range(BLOCKS) if block not in known]


def describe_blocks(blocks: Sequence[int]) -> str:
    """Return blocks of the day as words: 00:00 to 06:00 and 21:00 to 24:00 UTC."""
    spans: list[list[int]] = []
    for block in blocks:
        if spans and spans[-1][1] == block:
            spans[-1][1] = block + 1
        else:
            spans.append([block, block + 1])
    shown = [f"{a * BLOCK_HOURS:02}:00 to {b * BLOCK_HOURS:02}:00" for a, b in spans]
    *first, last = shown
    return f"{', '.join(first)} and {last} UTC" if first else f"{last} UTC"


def describe_gap(state: State) -> str | None:
    """Return what a baseline that does not cover the day may not conclude; None if it covers it."""
    unknown = list_unknown(state)
    if not unknown:
        return None
    return (
        f"the baseline has no answer from {describe_blocks(unknown)}: a fall at these hours may be"
        " the usual course of a day, and is no proof of a fault"
    )


def doubt_alarm(state: State, at: str) -> str:
    """Return the doubt about an alarm at an hour that the baseline does not know, or nothing."""
    block = find_block(at)
    if not state.blocks or block not in list_unknown(state):
        return ""
    return (
        f"; the baseline has no answer from {describe_blocks([block])}, so this may be the usual"
        " course of a day"
    )


def find_worst_floor(
    answers: Sequence[Sequence[float]], blocks: Sequence[Sequence[int]], alpha: float
) -> float:
    """Return a lower bound of the mean chance of a right answer in the worst block of the day.

    `answers` has the scores of each prompt, at least two, and `blocks` their blocks. Each answer is
    compared with the mean of the others to the same prompt, which removes the differences between
    prompts; the bound of each block holds with probability 1 - alpha / BLOCKS.
    """
    values: dict[int, list[float]] = {}
    for scores, places in zip(answers, blocks, strict=True):
        total = math.fsum(scores)
        for score, block in zip(scores, places, strict=True):
            others = (total - score) / (len(scores) - 1)
            values.setdefault(block, []).append(score - others)
    mean = math.fsum(map(math.fsum, answers)) / math.fsum(map(len, answers))
    worst = min(mean_lower_bound(one, alpha / BLOCKS) for one in values.values())
    return max(0.0, mean + worst)
