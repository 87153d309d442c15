"""Bet that few answers will be missing, on the first prompts of a random order.

A run with too many missing answers is undecided. Before an early decision it must therefore be
almost certain that not too many will be missing. The hypothesis "more than `most` of all are
missing" is nearest to the truth at F = most + 1: with more of them, a missing answer is likelier
still. The wealth is the probability of the prefix with j missing answers in the whole over that
with F, averaged over j below F. A prefix of k prompts, of which m are missing in given places, has
the probability [j]_m [n - j]_(k - m) / [n]_k, where [a]_b = a (a - 1) ... (a - b + 1). Such a ratio
is a martingale under F missing, so the wealth reaches 1 / eps with probability at most eps, for any
number of looks (Ville 1939).
"""

from __future__ import annotations

import math

ON_NONE = 0.5
"""Weight of j = 0, the usual case, for which a prefix without a missing answer is the strongest
evidence. The other j share the rest, so that a missing answer does not end the bet."""


def most_missing(planned: int, share: float) -> int:
    """Return the largest number of missing answers whose share of `planned` is at most `share`."""
    most = min(planned, max(0, round(share * planned)))
    while most > 0 and most / planned > share:
        most -= 1
    return most


def log_wealth(planned: int, most: int, looked_at: int, missing: int) -> float:
    """Return ln of the evidence that at most `most` of `planned` answers will be missing.

    `missing` of the first `looked_at` of a random order are missing. The evidence is infinite as
    soon as more than `most` cannot be missing any longer, and minus infinity as soon as more are.
    """
    too_many = most + 1
    if missing >= too_many:
        return -math.inf
    if looked_at - missing > planned - too_many:
        return math.inf
    weights = [ON_NONE, *[(1.0 - ON_NONE) / most] * most] if most else [1.0]
    under_null = _log_ways(planned, too_many, looked_at, missing)
    logs = [
        math.log(weights[j]) + _log_ways(planned, j, looked_at, missing) - under_null
        for j in range(missing, too_many)
    ]
    top = max(logs)
    return top + math.log(math.fsum(math.exp(one - top) for one in logs))


def _log_ways(planned: int, all_missing: int, looked_at: int, missing: int) -> float:
    """Return ln of [j]_m [n - j]_(k - m).

    These are the ways to fill the prefix if j = `all_missing` of the whole are missing.
    """
    answered = planned - all_missing
    return _log_falling(all_missing, missing) + _log_falling(answered, looked_at - missing)


def _log_falling(a: int, b: int) -> float:
    """Return ln of a (a - 1) ... (a - b + 1)."""
    return math.lgamma(a + 1) - math.lgamma(a - b + 1)
