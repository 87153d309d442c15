"""Delay an early stop while the latest values are worse than those before them.

An early verdict infers the remaining answers from those so far. If an endpoint degrades during the
run, that inference fails. Before a run stops, the chart of `onset` is therefore checked, and there
is no decision while the chart is above `SHARE` of its alarm limit. A decline after the stop cannot
be seen.
"""

from __future__ import annotations

from array import array

from serve_eval.stats.onset import FIRST, latest, limit, worse_than_usual

ALPHA = 0.008
"""Probability that the chart of a sound run passes its limit."""
SHARE = 1.0 / 3.0
"""Share of the limit. By simulation with 198 and 1319 prompts: at 1/2, twice as many runs that
degrade in their middle pass after that; at 1/4, sound runs stop later."""


class DriftHold:
    """Decide whether the first values of a run of `planned` prompts delay a stop.

    Values come in the order of the looks and are oriented so that lower is worse. `worst` is the
    lowest possible value, and replaces a missing one. Two charts are kept: one of values worse than
    usual, and one of values worse than the reference's, if known.
    """

    def __init__(self, planned: int, worst: float) -> None:
        self._limit = SHARE * limit(planned, ALPHA)
        self._worst = worst
        self._values = array("d")
        self._worse = bytearray()
        self.times = 0

    def add(self, value: float | None, reference: float | None) -> None:
        """Add the next value and the reference's for the same prompt.

        None stands for a missing value or an unknown reference.
        """
        self._values.append(self._worst if value is None else value)
        if reference is not None:
            self._worse.append(value is None or value < reference)

    def holds(self) -> bool:
        """Return True if the chart delays a stop after the last value, and count it in `times`."""
        import numpy

        usual = worse_than_usual(numpy.array(self._values), self._worst, FIRST)
        charts = [latest(usual)]
        if self._worse:
            charts.append(latest(numpy.array(self._worse, dtype=numpy.bool_)))
        high = max(charts) > self._limit
        self.times += high
        return high
