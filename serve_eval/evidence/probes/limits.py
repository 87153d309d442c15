"""The limits that divide the distances of a server's answers. Pure.

A floor has one of three origins. One that the user *gave* is the largest distance of healthy
numerics. One that siblings *measured* is the largest of almost all of their distances, and a
healthy server may be TIMES as far away. One that is *unknown* accuses nobody of other numerics: no
sibling was there, or all of them answer as replicas do, which says nothing of other kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FAR_NATS = 0.5
"""Distance, in nats, that no numerics explain. A fault of few requests shows in such hits."""
MARGIN = 1.5
"""Factor from the largest distance of a few repetitions to the largest one of many."""
FLOORS = 3.0
TIMES = 2.0
"""Factor by which a healthy server may be further away than its siblings."""
LEAST_FLOOR = 0.02
"""Floor, in nats, below which siblings measure nothing. Engines that were measured with other
kernels have largest distances of .2, so siblings below it are replicas of one build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceLimits:
    """The limits of distances, in nats. `floor` is None if nobody measured or gave it.

    `measured`: siblings measured it, and `typical` is the median of their distances.
    """

    noise: float
    step: float
    floor: float | None
    measured: bool = False
    typical: float = 0.0

    @property
    def beyond_noise(self) -> float:
        """The largest distance that the noise and the rounding explain."""
        return max(MARGIN * self.noise, self.step)

    @property
    def known(self) -> bool:
        """True if a server can differ from the floor: it was given, or the siblings measured it.

        Siblings measure it if they differ at all, and by LEAST_FLOOR or more; noise of the
        reference's server counts as such a difference.
        """
        if self.floor is None or not self.measured:
            return self.floor is not None
        return self.typical > 0.0 and max(self.floor, self.beyond_noise) >= LEAST_FLOOR

    @property
    def beyond_floor(self) -> float:
        """The largest distance that healthy numerics explain; infinite if unknown."""
        if self.floor is None or not self.known:
            return math.inf
        return max(self.floor * (TIMES if self.measured else 1.0), self.beyond_noise)

    @property
    def beyond_floors(self) -> float:
        """The distance of a large fault: FLOORS times the floor; infinite if unknown."""
        if self.floor is None or not self.known:
            return math.inf
        return FLOORS * max(self.floor, self.beyond_noise)

    @property
    def far(self) -> float:
        """The distance that only a fault explains, if healthy servers have no such answers.

        If siblings are compared, their answers show whether healthy servers have them.
        """
        given = self.known and not self.measured
        return max(FAR_NATS, self.beyond_floors if given else FLOORS * self.beyond_noise)

    @property
    def far_alone(self) -> float:
        """The distance that only a fault explains where no sibling answers the same probes."""
        return max(self.far, self.beyond_floors)

    @property
    def far_sibling(self) -> float:
        """The distance of a sibling from which a healthy server could be far away."""
        return self.far / TIMES

    def exceeds_siblings(self, nats: float, siblings: tuple[float, ...]) -> bool:
        """Return True for an answer more than TIMES as far away as those of all siblings."""
        return nats > max(TIMES * max(siblings), LEAST_FLOOR, self.beyond_noise)
