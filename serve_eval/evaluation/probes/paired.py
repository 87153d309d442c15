"""Compare a server with healthy siblings probe by probe, in size and in sign. Pure.

Both answered the same probes, so a probe at which healthy numerics move much moves both of them,
and a single outlier of a sibling hides one probe, not all. Healthy is a server that is at most
TIMES as far from the reference as its siblings are. Two bets look at that:

* *sign*: at one probe, the server is more than TIMES as far away as each of k siblings. For a
  healthy server that has a chance of at most 1 / (k + 1), whatever the shape of the distances,
  since it is then nearer to the reference than a further sibling times TIMES would be;
* *far*: of the probes at which either the server or a sibling is far away and not both, it is the
  server. For one that is so at most TIMES as often as a sibling, that has a chance of at most
  TIMES / (k + TIMES).

Source of the evidence: serve_eval/stats/exceedances.py.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from serve_eval.evaluation.probes.limits import LEAST_FLOOR, TIMES, DistanceLimits
from serve_eval.schema import ProbeDistance
from serve_eval.stats.exceedances import ABOVE, log_evidence_above

POWER_Z = 1.2816
"""Quantile of the normal distribution for a power of .9."""


@dataclass(slots=True, kw_only=True)
class PairedCounts:
    """The probes that a server and its siblings answered, and what they differ in.

    Only probes count that all `siblings` answered. `further` counts probes at which the server
    exceeds all siblings, `far_alone` those at which it alone is far away, `siblings_alone` those at
    which siblings alone are.
    """

    limits: DistanceLimits
    pairs: int = 0
    siblings: int = 1
    further: int = 0
    far_alone: int = 0
    siblings_alone: int = 0
    siblings_far: int = 0
    siblings_beyond: int = 0
    siblings_read: int = 0
    _own: list[float] = field(default_factory=list)
    _sibling: list[float] = field(default_factory=list)

    def add(self, distance: ProbeDistance) -> None:
        """Count a probe; one without a measured answer of each sibling says nothing."""
        others = distance.sibling_nats[: self.siblings]
        if len(others) < self.siblings:
            return
        self.pairs += 1
        limit = 0.0 if distance.texts_only else self.limits.far
        far, healthy = distance.nats > limit, [nats > limit for nats in others]
        self.further += self.limits.exceeds_siblings(distance.nats, others)
        self.far_alone += far and not any(healthy)
        self.siblings_alone += any(healthy) and not far
        self.siblings_read += len(others)
        self.siblings_far += sum(healthy)
        self.siblings_beyond += sum(nats > self.limits.beyond_floors for nats in others)
        self._own.append(distance.nats)
        self._sibling.append(max(others))

    @property
    def larger(self) -> bool:
        """True if the typical distance is more than TIMES that of the siblings."""
        return bool(self.pairs) and statistics.median(self._own) > max(
            TIMES * statistics.median(self._sibling), LEAST_FLOOR, self.limits.beyond_noise
        )

    @property
    def log_sign(self) -> float:
        """The natural logarithm of the evidence that the server is further away than healthy."""
        share = 1 / (self.siblings + 1)
        return log_evidence_above(self.further, self.pairs - self.further, share)

    @property
    def log_far(self) -> float:
        """The natural logarithm of the evidence that it is far away at more probes."""
        return log_evidence_above(self.far_alone, self.siblings_alone, far_share(self.siblings))

    def weigh(self) -> float:
        """Return the natural logarithm of the evidence of both bets: their mean.

        The sign counts only together with the size.
        """
        bets = [self.log_far, self.log_sign if self.larger else -math.inf]
        top = max(bets)
        return top + math.log(sum(math.exp(bet - top) for bet in bets) / len(bets))

    @property
    def explains_far(self) -> bool:
        """True if the siblings are far away at least half as often."""
        read = max(1, self.siblings_read)
        own = sum(nats > self.limits.far for nats in self._own)
        return own <= TIMES * self.siblings_far / read * self.pairs

    def explains_beyond(self, beyond: int) -> bool:
        """Return True if siblings lie beyond FLOORS floors at least half as often."""
        return beyond <= TIMES * self.siblings_beyond / max(1, self.siblings_read) * self.pairs

    def count_needed(self, share: float) -> int:
        """Return the probes that show a fault in a share of the requests with a power of .9.

        The siblings' share of far answers is what healthy servers have. See `count_probes`.
        """
        healthy = self.siblings_far / max(1, self.siblings_read)
        return count_probes(healthy, share, self.siblings)


def far_share(siblings: int) -> float:
    """Return the largest chance that the server, and no sibling, is the one far away."""
    return TIMES / (siblings + TIMES)


def count_probes(healthy: float, share: float, siblings: int = 1, alpha: float = 0.01) -> int:
    """Return the probes that show a fault in a `share` of the requests with a power of .9.

    `healthy` is the share of probes at which healthy servers are far away. The evidence grows with
    each probe by a mean and a variance, so after n probes it is about normal.
    """
    null = far_share(siblings)
    own = healthy + share * (1 - healthy)
    alone, others = own * (1 - healthy) ** siblings, (1 - own) * (1 - (1 - healthy) ** siblings)
    best = math.inf
    for place in ABOVE:
        other = null + place * (1 - null)
        hit, miss = math.log(other / null), math.log((1 - other) / (1 - null))
        mean = alone * hit + others * miss
        if mean <= 0:
            continue
        variance = alone * hit**2 + others * miss**2 - mean**2
        need = -math.log(alpha) + math.log(2 * len(ABOVE))
        root = (
            POWER_Z * math.sqrt(variance) + math.sqrt(POWER_Z**2 * variance + 4 * mean * need)
        ) / (2 * mean)
        best = min(best, root**2)
    return 10**6 if math.isinf(best) else 10 * math.ceil(best / 10)
