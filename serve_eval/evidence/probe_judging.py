"""Judge a server by the distances of its answers, after every probe.

Too few of them to call the server another model can still be a fault, since sound servers have
none: a KV block of another request, a broken kernel for one shape, one bad replica of many. More
probes do not decide about a small share; asking the same probes again does. An answer that is far
away each time comes from the prompt and not from chance.

Healthy numerics of a mixture of experts move some probes by a nat, and again each time. So hits
count only where healthy servers have none. That is known from the siblings' answers to enough
probes, from the floor that the user gave, or, where no floor is known, from the other probes, if
they are bit for bit alike. If these are not alike either, only a distance counts that no expert's
flip explains.

The conclusion is

* ANOTHER, if the server is further away than healthy ones. Where siblings measured the floor, that
  means more than twice as far as they are, in size and in sign, probe by probe (`paired.py`). Where
  the floor was given, the evidence shows that more probes lie beyond it, or far beyond it, than may
  (`given_floor.py`). 1 / evidence is a p-value at any time. Holm's
  correction over all servers of a family must leave it at ALPHA or below;
* FAULT, if single answers are far away as those of no healthy server (`faults.py`), or if more of
  them are than of the siblings';
* IDENTICAL, if a share of SHARE beyond the noise is excluded, no probe lies beyond three times the
  noise, and the server lists log-probabilities. Where the reference's server never differs from
  itself, that means no difference;
* OTHER NUMERICS, if a share of SHARE beyond three floors is excluded, or siblings have it too, and
  the server is typically at most twice as far away as they are;
* UNDECIDED otherwise.

Without a known floor there is no ANOTHER and no OTHER NUMERICS: a healthy server with other kernels
differs from the reference's too, and nothing says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from serve_eval.evidence.paired_probes import PairedCounts
from serve_eval.evidence.probe_floor import FLOORS, TIMES, DistanceLimits, weigh_probes
from serve_eval.schema import ProbeDistance, VerificationOutcome
from serve_eval.stats.distances import count_unlikely, share_beyond, share_upper_bound
from serve_eval.stats.multiplicity import holm

VERY_FAR = 2.0
"""Distance, in nats, of which one probe is enough, if it is so again."""
NO_FLIP = 5.0
"""Distance, in nats, that no flip of an expert explains, where nothing else is known."""
HITS = 2
"""Number of probes, far away, that are a fault together."""
FLIPS, ALPHA = 0.0155, 0.01
"""Share of probes that healthy experts move by a quarter of a nat at least, if they move 2 % by a
nat on average, and the chance to see none of them."""
CLEAN = math.ceil(math.log(ALPHA) / math.log1p(-FLIPS))
"""Siblings' answers, none of them half as far away as a fault, that exclude such flips."""
ALIKE = 0.05
"""Largest share of other probes that differ where a server is bit for bit alike elsewhere."""


def keep_returned(distances: Sequence[ProbeDistance], least: float) -> list[float]:
    """Return the distances of probes that were beyond `least` each time they were repeated."""
    return [
        one.nats
        for one in distances
        if one.nats > least and one.repeats and min(one.repeats) > least
    ]


def is_fault(nats: Sequence[float]) -> bool:
    """Return True if answers that healthy servers do not have are enough for a fault."""
    return len(nats) >= HITS or any(one > VERY_FAR for one in nats)


def exceeds_tail(far: int, asked: int, siblings: Sequence[float], limit: float) -> bool:
    """Return True if more answers are far away than the tail of the siblings' explains.

    `far` of `asked` are. `siblings` are the distances of all answers of siblings, none of them
    beyond `limit`. If they fall steeply, a single answer is too many.
    """
    return far >= count_unlikely(asked * share_beyond(siblings, limit), ALPHA)


def keep_unexplained(distances: Sequence[ProbeDistance], far: float, *, alike: bool) -> list[float]:
    """Return the distances, in nats, that are a fault where no floor is known, if there are enough.

    `alike`: the other probes are bit for bit alike. Each was so again each time.
    """
    return keep_returned(distances, far if alike else max(far, NO_FLIP))


def is_no_flip(nats: Sequence[float]) -> bool:
    """Return True for answers of which no flip of an expert explains enough."""
    return sum(one > NO_FLIP for one in nats) >= HITS


EVIDENCE_ALPHA = 0.01
SHARE = 0.1
UNSOUND = (VerificationOutcome.ANOTHER, VerificationOutcome.FAULT)
MORE = 100
"""Probes that are asked after a hit far beyond the floor, before a sound outcome."""


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
    `ended`: no further probe will be asked. `healthy` are the distances of all answers of siblings,
    which may have answered more probes than the server.
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
    larger: bool = False
    ended: bool = False
    healthy: Sequence[float] = ()
    distances: list[ProbeDistance] = field(default_factory=list)
    paired: PairedCounts = field(init=False)

    def __post_init__(self) -> None:
        self.paired = PairedCounts(limits=self.limits)

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
        """True if the server is no healthy one, by the evidence of all servers at any time."""
        return self.p_holm <= EVIDENCE_ALPHA

    @property
    def largest(self) -> float:
        """The largest distance so far, in nats."""
        return max((one.nats for one in self.distances), default=0.0)

    @property
    def returned(self) -> list[float]:
        """The distances of the probes far away that were so again each time, in nats."""
        return keep_returned(self.distances, self.limits.far)

    def add(self, distance: ProbeDistance) -> None:
        """Count a probe, and look at the evidence."""
        limits, nats = self.limits, distance.nats
        self.asked += 1
        self.distances.append(distance)
        self.numbers += not distance.texts_only
        self.beyond_noise += nats > limits.beyond_noise
        self.beyond_floor += nats > limits.beyond_floor
        self.beyond_floors += nats > limits.beyond_floors
        if nats > limits.far:
            self.far += 1
            self.last_far = self.asked
        self.paired.add(distance)
        if limits.known:
            self._weigh()

    def _weigh(self) -> None:
        """Look at the evidence. Once it is enough, the outcome stays as it is."""
        if not self.limits.measured:
            now = weigh_probes(self.asked, self.beyond_floor, self.far)
            self.larger = True
        else:
            now = self.paired.weigh()
            if now > self.highest:
                self.larger = self.paired.larger and self.paired.log_sign >= self.paired.log_far
        self.highest = max(self.highest, now)

    def conclude(self) -> VerificationOutcome:
        """Return the outcome so far. UNDECIDED means that more probes may decide."""
        if self.found:
            another = self.larger or not self.numbers
            return VerificationOutcome.ANOTHER if another else VerificationOutcome.FAULT
        if not self.asked or (self.is_waiting and not self.ended):
            return VerificationOutcome.UNDECIDED
        if self.has_fault:
            return VerificationOutcome.FAULT
        if self.is_waiting or self.lacks_answers or self.is_odd:
            return VerificationOutcome.UNDECIDED
        alike = self.numbers and self.largest <= FLOORS * self.limits.beyond_noise
        if alike and self.bound_share(self.beyond_noise) < SHARE:
            return VerificationOutcome.IDENTICAL
        if self.limits.known and self._is_as_near_as_healthy():
            return VerificationOutcome.OTHER_NUMERICS
        return VerificationOutcome.UNDECIDED

    @property
    def is_waiting(self) -> bool:
        """True if probes follow an answer that is far away, as no sibling's is."""
        if not self.far or self.asked >= self.last_far + MORE:
            return False
        return not (self.limits.measured and self.paired.explains_far)

    @property
    def has_fault(self) -> bool:
        """True if answers are far away as those of no healthy server."""
        if not self.limits.known:
            found = self._keep_unexplained()
            return is_fault(found) if self.is_alike_elsewhere else is_no_flip(found)
        if not self.limits.measured:
            return is_fault(self.returned)
        if self.paired.largest_sibling <= NO_FLIP / TIMES and is_no_flip(self.returned):
            return True
        return self._is_clean and len(self.healthy) >= CLEAN and self._exceeds_siblings

    @property
    def is_alike_elsewhere(self) -> bool:
        """True if almost all probes are within the noise, but for those far away.

        Nothing is known of a server whose siblings have far answers too.
        """
        others = self.beyond_noise - self.far
        return not self.paired.siblings_half and others <= ALIKE * self.asked

    def _keep_unexplained(self) -> list[float]:
        alike = self.is_alike_elsewhere
        return keep_unexplained(self.distances, self.limits.far, alike=alike)

    @property
    def lacks_answers(self) -> bool:
        """True if single answers are a fault unless some sibling has one too, among CLEAN."""
        if not self.limits.known or not self.limits.measured:
            return False
        return self._is_clean and len(self.healthy) < CLEAN and bool(self.far)

    @property
    def _is_clean(self) -> bool:
        """True if no answer of a sibling is half as far away as a fault."""
        limit = self.limits.far_sibling
        return not self.paired.siblings_half and all(nats <= limit for nats in self.healthy)

    @property
    def _exceeds_siblings(self) -> bool:
        return exceeds_tail(self.far, self.asked, self.healthy, self.limits.far_sibling)

    @property
    def is_odd(self) -> bool:
        """True if a probe is far away each time, which siblings are not, and is no fault yet."""
        healthy = self.limits.measured and self.paired.explains_far
        return bool(self.returned) and not healthy

    @property
    def far_nats(self) -> list[float]:
        """The distances of probes that are far away, in nats."""
        return [one.nats for one in self.distances if one.nats > self.limits.far]

    def _is_as_near_as_healthy(self) -> bool:
        if not self.limits.measured:
            return self.bound_share(self.beyond_floors) < SHARE
        if self.paired.larger or self.bound_share(0) >= SHARE:
            return False
        explained = self.paired.explains_beyond(self.beyond_floors)
        return explained or self.bound_share(self.beyond_floors) < SHARE

    def is_settled(self, most: int, *, thorough: bool = True) -> bool:
        """Return True if no further probe is asked, of at most `most`.

        A `thorough` verification calls a server sound only after all of them, if siblings are
        compared: their answers show faults of few requests, which few probes miss.
        """
        if self.tried >= most or not self.can_decide(most):
            return True
        outcome = self.conclude()
        if self.limits.measured and self.limits.known:
            if thorough:
                return outcome in UNSOUND
            if self.lacks_answers and not self.is_waiting:
                return True
        return outcome is not VerificationOutcome.UNDECIDED

    def can_decide(self, most: int) -> bool:
        """Return True if further answers, up to `most` probes in all, can change UNDECIDED.

        Without a known floor only IDENTICAL and FAULT are left, and one clear difference rules out
        the first.
        """
        if self.limits.known or not self.asked:
            return True
        if self.has_fault:
            return not self.ended
        if not self.numbers or self.largest > FLOORS * self.limits.beyond_noise:
            return bool(self._keep_unexplained()) and self.asked < min(most, self.last_far + MORE)
        hits = self.unanswered + self.beyond_noise
        return share_upper_bound(hits, max(0, most - hits), EVIDENCE_ALPHA) < SHARE

    def bound_share(self, hits: int) -> float:
        """Return the smallest share of such probes that is excluded at level ALPHA.

        Probes without an answer count as such ones, since a fault can be what kept it away.
        """
        return share_upper_bound(self.unanswered + hits, self.asked - hits, EVIDENCE_ALPHA)

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
