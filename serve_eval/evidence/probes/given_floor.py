"""Weigh the probes beyond a floor where no sibling answers the same probes. Pure."""

from __future__ import annotations

import math

from serve_eval.stats.exceedances import log_evidence_above

ALLOWED, ALLOWED_FAR = 0.05, 0.01
"""Shares of probes beyond a given floor, and far beyond it, that healthy servers may have."""


def weigh_probes(asked: int, beyond_floor: int, far: int) -> float:
    """Return the natural logarithm of the evidence that a server is another one.

    Of `asked` probes, `beyond_floor` lie beyond the floor and `far` of them far beyond it. The
    evidence is the mean of that against ALLOWED and that against ALLOWED_FAR.
    """
    bets = (
        log_evidence_above(beyond_floor, asked - beyond_floor, ALLOWED),
        log_evidence_above(far, asked - far, ALLOWED_FAR),
    )
    top = max(bets)
    return top + math.log(sum(math.exp(bet - top) for bet in bets) / len(bets))
