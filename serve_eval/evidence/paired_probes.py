"""Compare a server with healthy siblings probe by probe, in size and in sign. Pure.

Both answered the same probes, so a probe at which healthy numerics move much moves both of them,
and a single outlier of a sibling hides one probe, not all. Healthy is a server that is at most
TIMES as far from the reference as its siblings are. Two bets look at that:

* *sign*: at one probe, the server is more than TIMES as far away as each of k siblings. For a
  healthy server that has a chance of at most 1 / (k + 1), whatever the shape of the distances,
  since it is then nearer to the reference than a further sibling times TIMES would be;
* *far*: of the probes at which either the server is far away or a sibling is at least half as far,
  and not both, it is the server. That has the same chance, since a healthy server is far away at
  most as often as a sibling is half as far.

Source of the evidence: serve_eval/stats/distances.py.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from serve_eval.evidence.probe_floor import LEAST_FLOOR, TIMES, DistanceLimits
from serve_eval.schema import ProbeDistance
from serve_eval.stats.distances import ABOVE, count_unlikely, log_evidence_above

EXPLAINED = 0.05
"""Chance with which a healthy server has more far answers than its siblings explain."""
POWER_Z = 1.4051
"""Quantile of the normal distribution for a power of .92: the approximation is a little bold, and
.9 is promised."""


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
    siblings_half: int = 0
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
        limit, half = self.limits.far, self.limits.far_sibling
        if distance.texts_only:
            limit = half = 0.0
        far, healthy = distance.nats > limit, [nats > half for nats in others]
        self.further += self.limits.exceeds_siblings(distance.nats, others)
        self.far_alone += far and not any(healthy)
        self.siblings_alone += any(healthy) and not far
        self.siblings_read += len(others)
        self.siblings_far += sum(nats > limit for nats in others)
        self.siblings_half += sum(healthy)
        self.siblings_beyond += sum(nats > self.limits.beyond_floors for nats in others)
        self._own.append(distance.nats)
        self._sibling.append(max(others))

    @property
    def largest_sibling(self) -> float:
        """The largest distance of a sibling, in nats."""
        return max(self._sibling, default=0.0)

    @property
    def larger(self) -> bool:
        """True if the typical distance is more than TIMES that of the siblings."""
        return bool(self.pairs) and statistics.median(self._own) > max(
            TIMES * statistics.median(self._sibling), LEAST_FLOOR, self.limits.beyond_noise
        )

    @property
    def log_sign(self) -> float:
        """The natural logarithm of the evidence that the server is further away than healthy."""
        return log_evidence_above(self.further, self.pairs - self.further, 1 / (self.siblings + 1))

    @property
    def log_far(self) -> float:
        """The natural logarithm of the evidence that it is far away at more probes."""
        return log_evidence_above(self.far_alone, self.siblings_alone, 1 / (self.siblings + 1))

    def weigh(self) -> float:
        """Return the natural logarithm of the evidence of both bets: their mean.

        The sign counts only together with the size. A bet that is below its chance has no evidence.
        """
        signed = self.further * (self.siblings + 1) > self.pairs and self.larger
        alone = self.far_alone * self.siblings > self.siblings_alone
        bets = [self.log_far if alone else -math.inf, self.log_sign if signed else -math.inf]
        if math.isinf(top := max(bets)):
            return -math.inf
        return top + math.log(sum(math.exp(bet - top) for bet in bets) / len(bets))

    @property
    def explains_far(self) -> bool:
        """True if the server can be far away as often if siblings are half as far so often.

        Without one that is, a single answer is not explained.
        """
        own = sum(nats > self.limits.far for nats in self._own)
        expected = TIMES * self.siblings_half / max(1, self.siblings_read) * self.pairs
        return own < count_unlikely(expected, EXPLAINED)

    def explains_beyond(self, beyond: int) -> bool:
        """Return True if siblings lie beyond FLOORS floors at least half as often."""
        return beyond <= TIMES * self.siblings_beyond / max(1, self.siblings_read) * self.pairs

    def count_needed(self, share: float) -> int:
        """Return the probes that show a fault in a share of the requests with a power of .9.

        The siblings' share of far answers is what healthy servers have. See `count_probes`.
        """
        read = max(1, self.siblings_read)
        healthy = self.siblings_far / read, self.siblings_half / read
        return count_probes(healthy, share, self.siblings)


def count_probes(
    healthy: tuple[float, float], share: float, siblings: int = 1, alpha: float = 0.01
) -> int:
    """Return the probes that show a fault in a `share` of the requests with a power of .9.

    `healthy` are the shares of probes at which healthy servers are far away, and half as far. The
    evidence grows with each probe by a mean and a variance, so after n probes it is about normal.
    """
    null = 1 / (siblings + 1)
    own = healthy[0] + share * (1 - healthy[0])
    none = (1 - healthy[1]) ** siblings
    alone, others = own * none, (1 - own) * (1 - none)
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
