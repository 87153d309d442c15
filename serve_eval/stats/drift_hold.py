"""Delay an early stop while the latest values look worse than those before them.

An early verdict is about what was not asked yet, by what was. When an endpoint is turning worse,
the one says little of the other. The chart of `onset` is therefore looked at before a run stops,
and nothing is decided while it stands above `SHARE` of the limit at which it would alarm. What
turns worse after the stop cannot be seen.
"""

from __future__ import annotations

from array import array

from serve_eval.stats.onset import FIRST, latest, limit, worse_than_usual

ALPHA = 0.008
"""Probability with which the chart of a sound run passes its limit at all."""
SHARE = 1.0 / 3.0
"""Of the limit. By simulation of 198 and 1319 prompts: at half of it twice as many runs that turn
worse in their middle pass after that; at a quarter sound runs stop later."""


class DriftHold:
    """The first values of a run of `planned` prompts, in the order of the looks, and whether they
    hold a stop up.

    Values are oriented so that lower is worse; `worst` is the lowest there is, and stands for a
    missing one. Two things are charted: a value worse than usual, and, where the reference's is
    known, one worse than the reference's.
    """

    def __init__(self, planned: int, worst: float) -> None:
        self._limit = SHARE * limit(planned, ALPHA)
        self._worst = worst
        self._values = array("d")
        self._worse = bytearray()
        self.times = 0

    def add(self, value: float | None, reference: float | None) -> None:
        """Take the next value (None: missing), and the reference's of the same prompt (None: not
        known).
        """
        self._values.append(self._worst if value is None else value)
        if reference is not None:
            self._worse.append(value is None or value < reference)

    def holds(self) -> bool:
        """Look at the chart after the last value, and count how often it held the stop up
        (`times`).
        """
        import numpy

        usual = worse_than_usual(numpy.array(self._values), self._worst, FIRST)
        charts = [latest(usual)]
        if self._worse:
            charts.append(latest(numpy.array(self._worse, dtype=numpy.bool_)))
        high = max(charts) > self._limit
        self.times += high
        return high
