"""Bet that few answers will be missing, on the first prompts of a random order.

A run with too many missing answers is undecided, so nothing may be decided early before it is as
good as certain that there will not be too many. The hypothesis "more than `most` of all are
missing" is nearest to the truth at F = most + 1: with more of them, a missing answer is likelier
still. The wealth is the probability of the prefix with j missing answers in the whole over that
with F, averaged over j below F. A prefix of k prompts, of which m are missing in given places, has
the probability [j]_m [n - j]_(k - m) / [n]_k, where [a]_b = a (a - 1) ... (a - b + 1). Such a ratio
is a martingale under F missing, so the wealth reaches 1 / eps with probability eps at most, however
often one looks (Ville 1939).
"""

from __future__ import annotations

import math

ON_NONE = 0.5
"""Weight of j = 0, the usual case: of a prefix without a missing answer nothing is stronger
evidence. The other j share the rest, so that a missing answer does not end the bet."""


def most_missing(planned: int, share: float) -> int:
    """Count the answers that may be missing at most for their share of `planned` not to exceed
    `share`.
    """
    most = min(planned, max(0, round(share * planned)))
    while most > 0 and most / planned > share:
        most -= 1
    return most


def log_wealth(planned: int, most: int, looked_at: int, missing: int) -> float:
    """Natural logarithm of the evidence that at most `most` of `planned` answers will be missing.

    `missing` of the first `looked_at` of a random order are. Infinite once more cannot be missing
    any longer, minus infinity once more are.
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
    """Ln of [j]_m [n - j]_(k - m): the ways to fill the prefix when j = `all_missing` of the whole
    are missing.
    """
    answered = planned - all_missing
    return _log_falling(all_missing, missing) + _log_falling(answered, looked_at - missing)


def _log_falling(a: int, b: int) -> float:
    """Ln of a (a - 1) ... (a - b + 1)."""
    return math.lgamma(a + 1) - math.lgamma(a - b + 1)
