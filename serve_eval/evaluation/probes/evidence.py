"""Judge a server by the distances of its answers, after every probe. Pure.

Three limits divide the distances: the noise (MARGIN times the largest distance of the reference's
server from itself), the floor (the largest one of a healthy sibling, or a given one), and three
floors. The conclusion is

* ANOTHER, if the evidence shows that more than ALLOWED of the probes lie beyond the floor, or more
  than ALLOWED_FAR of them far beyond it. Both bets share one error budget: their evidence is
  averaged, and 1 / evidence is a p-value at any time. Holm's correction over all servers of a
  family must leave it at ALPHA or below;
* IDENTICAL, if a share of SHARE beyond the noise is excluded, no probe lies beyond three times the
  noise, and the server lists log-probabilities. Where the reference's server never differs from
  itself, that means no difference;
* OTHER NUMERICS, if a share of SHARE beyond three floors is excluded;
* UNDECIDED otherwise.

Without a floor there is no ANOTHER and no OTHER NUMERICS: a healthy server with other kernels
differs from the reference's too, and nothing says by how much.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from serve_eval.schema import ProbeDistance, VerificationOutcome
from serve_eval.stats.exceedances import log_evidence_above, share_upper_bound
from serve_eval.stats.multiplicity import holm

ALPHA = 0.01
ALLOWED, ALLOWED_FAR = 0.05, 0.01
"""Shares of probes beyond the floor, and far beyond it, that healthy servers may have."""
FAR_NATS = 0.5
"""Distance, in nats, that no numerics explain. A fault of few requests shows in such hits."""
MARGIN = 1.5
"""Factor from the largest distance of a few repetitions to the largest one of many."""
FOUR_BIT_NATS = 0.1
"""Median distance, in nats, above that of every healthy deployment that was measured (.027 at most,
and .089 with eight-bit weights and activations), and below that of four-bit weights (.20)."""
FLOORS = 3.0
SHARE = 0.1
MORE = 100
"""Probes that are asked after a hit far beyond the floor, before a sound outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceLimits:
    """The limits of distances, in nats. `floor` is None if it is unknown."""

    noise: float
    step: float
    floor: float | None

    @property
    def beyond_noise(self) -> float:
        """The largest distance that the noise and the rounding explain."""
        return max(MARGIN * self.noise, self.step)

    @property
    def beyond_floor(self) -> float:
        """The largest distance that healthy numerics explain; infinite if unknown."""
        return math.inf if self.floor is None else max(self.floor, self.beyond_noise)

    @property
    def far(self) -> float:
        """The distance that only a fault explains; infinite if the floor is unknown."""
        return max(FAR_NATS, FLOORS * self.beyond_floor)


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


class ServerFamily:
    """The servers whose outcomes share the level ALPHA.

    Each p-value holds at any time and never rises, so Holm's correction of the present ones keeps
    the level whenever the command stops, and a server that was found stays found. Servers that are
    not asked any more, or not yet, count too.
    """

    def __init__(self, limits: DistanceLimits, servers: int) -> None:
        self.members = [ProbeEvidence(limits=limits, family=self) for _ in range(servers)]

    def correct(self) -> list[float]:
        """Return the p-value of each server, corrected over all of them."""
        return holm([one.p for one in self.members])


@dataclass(slots=True, kw_only=True, eq=False)
class ProbeEvidence:
    """The counts of one server's distances so far, and the evidence in them.

    `asked` counts probes with an answer, `unanswered` those without one. `highest` is the
    natural logarithm of the most evidence so far. `numbers` counts distances between
    log-probabilities, not between texts alone. A server without a `family` is judged alone.
    """

    limits: DistanceLimits
    family: ServerFamily | None = field(default=None, repr=False)
    asked: int = 0
    unanswered: int = 0
    beyond_noise: int = 0
    beyond_floor: int = 0
    beyond_floors: int = 0
    far: int = 0
    last_far: int = 0
    numbers: int = 0
    highest: float = 0.0
    distances: list[ProbeDistance] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """The probes so far, with and without an answer."""
        return self.asked + self.unanswered

    @property
    def p(self) -> float:
        """The p-value of the server alone, by the most evidence so far."""
        return math.exp(-self.highest)

    @property
    def p_holm(self) -> float:
        """The p-value, corrected over the servers of the family."""
        if self.family is None:
            return self.p
        return self.family.correct()[self.family.members.index(self)]

    @property
    def found(self) -> bool:
        """True if the server is another one, by the evidence of all servers at any time so far."""
        return self.p_holm <= ALPHA

    @property
    def largest(self) -> float:
        """The largest distance so far, in nats."""
        return max((one.nats for one in self.distances), default=0.0)

    def add(self, distance: ProbeDistance) -> None:
        """Count a probe, and look at the evidence."""
        limits, nats = self.limits, distance.nats
        self.asked += 1
        self.distances.append(distance)
        self.numbers += not distance.texts_only
        self.beyond_noise += nats > limits.beyond_noise
        self.beyond_floor += nats > limits.beyond_floor
        self.beyond_floors += nats > FLOORS * limits.beyond_floor
        if nats > limits.far:
            self.far += 1
            self.last_far = self.asked
        if limits.floor is not None:
            self.highest = max(self.highest, weigh_probes(self.asked, self.beyond_floor, self.far))

    def conclude(self) -> VerificationOutcome:
        """Return the outcome so far. UNDECIDED means that more probes may decide."""
        if self.found:
            return VerificationOutcome.ANOTHER
        waiting = self.far and self.asked < self.last_far + MORE
        if not self.asked or waiting:
            return VerificationOutcome.UNDECIDED
        alike = self.numbers and self.largest <= FLOORS * self.limits.beyond_noise
        if alike and self.bound_share(self.beyond_noise) < SHARE:
            return VerificationOutcome.IDENTICAL
        if self.limits.floor is not None and self.bound_share(self.beyond_floors) < SHARE:
            return VerificationOutcome.OTHER_NUMERICS
        return VerificationOutcome.UNDECIDED

    def can_decide(self, most: int) -> bool:
        """Return True if further answers, up to `most` probes in all, can change UNDECIDED.

        Without a floor only IDENTICAL is left, and one clear difference rules that out.
        """
        if self.limits.floor is not None or not self.asked:
            return True
        if not self.numbers or self.largest > FLOORS * self.limits.beyond_noise:
            return False
        hits = self.unanswered + self.beyond_noise
        return share_upper_bound(hits, max(0, most - hits), ALPHA) < SHARE

    def bound_share(self, hits: int) -> float:
        """Return the smallest share of such probes that is excluded at level ALPHA.

        Probes without an answer count as such ones, since a fault can be what kept it away.
        """
        return share_upper_bound(self.unanswered + hits, self.asked - hits, ALPHA)

    @property
    def highest_evidence(self) -> float:
        """The most evidence so far; 1 / evidence bounds a p-value."""
        return math.exp(min(self.highest, 700.0))

    def exclude_share(self, outcome: VerificationOutcome) -> float | None:
        """Return the smallest share of deviating probes that a sound outcome excludes."""
        if outcome is VerificationOutcome.IDENTICAL:
            return self.bound_share(self.beyond_noise)
        if outcome is VerificationOutcome.OTHER_NUMERICS:
            return self.bound_share(self.beyond_floors)
        return None

    def _name_unanswered(self) -> str:
        return f", with {self.unanswered} unanswered," if self.unanswered else ""

    def _warn_of_far(self) -> str:
        """Return loud words if the distances are beyond those of healthy numerics, else none."""
        median = statistics.median([one.nats for one in self.distances])
        if not self.numbers or median <= FOUR_BIT_NATS:
            return ""
        return f"AS FAR APART AS FOUR-BIT WEIGHTS ARE ({median:.2g} nat in the median): "

    def explain(self) -> str:
        """Return the reason for the outcome in one sentence."""
        outcome, limits = self.conclude(), self.limits
        if outcome is VerificationOutcome.ANOTHER:
            most = f"{ALLOWED:.0%}" if self.beyond_floor else f"{ALLOWED_FAR:.0%}"
            return (
                f"{self.beyond_floor} of {self.asked} probes differ by more than healthy numerics"
                f" ({limits.beyond_floor:.3g} nat); {most} may"
            )
        if outcome is VerificationOutcome.IDENTICAL:
            if not self.beyond_noise:
                return f"none of {self.asked} probes differs by more than the server from itself"
            return (
                f"{self.beyond_noise} of {self.asked} probes differ by more than the server from"
                f" itself, by at most {self.largest:.3g} nat"
            )
        if outcome is VerificationOutcome.OTHER_NUMERICS and not self.numbers:
            return (
                f"{self.beyond_noise} of {self.asked} probes have another clear first token; the"
                " server lists no log-probabilities, so finer differences were not seen"
            )
        if outcome is VerificationOutcome.OTHER_NUMERICS and self.far:
            return (
                f"{self.far} of {self.asked} probes differ by up to {self.largest:.3g} nat, which"
                " no numerics explain: a fault of single requests, too few to call it another model"
            )
        if outcome is VerificationOutcome.OTHER_NUMERICS:
            return (
                f"{self.beyond_noise} of {self.asked} probes differ, by at most"
                f" {self.largest:.3g} nat: other kernels, batches, parallelism, or eight bits"
            )
        if limits.floor is None and self.beyond_noise:
            return (
                f"{self._warn_of_far()}{self.beyond_noise} of {self.asked} probes differ, by at"
                f" most {self.largest:.3g} nat, and no floor says how much healthy servers differ"
            )
        if not self.beyond_floor:
            return (
                f"none of {self.asked} probes differs by more than healthy numerics, but so few"
                f"{self._name_unanswered()} exclude only a share of {self.bound_share(0):.0%} or"
                " more"
            )
        return (
            f"{self.beyond_floor} of {self.asked} probes differ by more than healthy numerics: too"
            " many for a sound server, too few for another one"
        )
