"""Start recorded requests at their recorded times, and measure how late each of them starts.

The load is open: a request starts at its offset from the first one, whatever else is in flight. At
most MOST_OPEN requests are, so one that finds no room starts late, and is counted as late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serve_eval.schema import ArrivalLateness, Sample

MOST_OPEN = 1024
"""Requests in flight at most, unless `limits.concurrency` is higher."""
ARRIVAL = "arrival_s"
"""Key of the metadata with the seconds between the first request of a log and this one."""


class Arrivals:
    """The recorded times of one session, which begin with its first request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._late_s: list[float] = []
        self._span_s = 0.0

    async def wait(self, sample: Sample) -> None:
        """Return at the recorded time of a sample, or at once if that is over."""
        offset = float(sample.metadata[ARRIVAL])
        if self._begun is None:
            self._begun = self._clock() - offset
        due = self._begun + offset
        if (left := due - self._clock()) > 0.0:
            await asyncio.sleep(left)
        self._late_s.append(max(0.0, self._clock() - due))
        self._span_s = max(self._span_s, offset)

    def sum_up(self) -> ArrivalLateness | None:
        """Return how late the requests started; None if there were none."""
        late = sorted(self._late_s)
        if not late:
            return None
        return ArrivalLateness(
            requests=len(late),
            span_s=round(self._span_s, 3),
            median_s=round(late[len(late) // 2], 6),
            p99_s=round(late[min(len(late) - 1, len(late) * 99 // 100)], 6),
            worst_s=round(late[-1], 6),
        )
