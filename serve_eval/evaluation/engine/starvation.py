"""Notice requests that wait far longer than others: the server answers only some connections."""

from __future__ import annotations

import asyncio
import statistics
from collections import deque
from collections.abc import Callable, Hashable

LOOK_S = 1.0
"""Seconds between two looks."""
TIMES, LEAST_S = 1000.0, 5.0
"""Multiple of the median time, and seconds, that a request must wait."""
LEAST_ANSWERS, KEPT_ANSWERS = 50, 500
"""Answers that the median needs, and the latest ones that it is taken of."""


class StarvationWatch:
    """Compares the longest wait for the first byte of a reply with the median time of samples.

    `waiting_s` returns that wait, which begins when a request is sent: the time before, as in a
    pause that a quota asks for, is not the server's.
    """

    def __init__(self, clock: Callable[[], float], waiting_s: Callable[[], float]) -> None:
        self._clock, self._waiting_s = clock, waiting_s
        self._started: dict[Hashable, float] = {}
        self._times_s: deque[float] = deque(maxlen=KEPT_ANSWERS)

    def begin(self, request: Hashable) -> None:
        """Note that a request starts."""
        self._started[request] = self._clock()

    def end(self, request: Hashable) -> None:
        """Note that a request has ended."""
        self._times_s.append(self._clock() - self._started.pop(request))

    def look(self) -> str | None:
        """Return a warning if a request is starving."""
        if len(self._times_s) < LEAST_ANSWERS:
            return None
        median_s, oldest_s = statistics.median(self._times_s), self._waiting_s()
        if oldest_s < max(LEAST_S, TIMES * median_s):
            return None
        return (
            f"warning: a request has been waiting for {oldest_s:.0f} s, and the median is"
            f" {median_s:.3f} s: the server seems to leave some connections waiting. With"
            " --concurrency auto, as many requests are sent as it answers"
        )

    async def watch(self, notify: Callable[[str], None]) -> None:
        """Warn once. Runs until it is cancelled."""
        warned = False
        while True:
            await asyncio.sleep(LOOK_S)
            if not warned and (told := self.look()) is not None:
                notify(told)
                warned = True
