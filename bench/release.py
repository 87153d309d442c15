"""The time at which the benchmark server sends an answer."""

from __future__ import annotations

import math
import random


class Release:
    """The delay of each answer: fixed, or drawn so that answers arrive as from many GPUs.

    With `spread` the delay is exponential with the mean `latency_s`: many requests in flight then
    make the answers arrive almost as a Poisson process. With `step_s` answers leave only at
    multiples of it, as those of one decode step do.
    """

    def __init__(self, latency_s: float, *, spread: bool = False, step_s: float = 0.0) -> None:
        self.latency_s, self._spread, self._step_s = latency_s, spread, step_s
        self._random = random.Random(1)

    def after(self, now: float) -> float:
        """Return the seconds until the answer to a request that is here now."""
        delay = self._random.expovariate(1 / self.latency_s) if self._spread else self.latency_s
        if not self._step_s:
            return delay
        return math.ceil((now + delay) / self._step_s) * self._step_s - now
