"""At most so many starts per second, evenly spaced."""

from __future__ import annotations

import asyncio
from collections import deque

SLACK_S = 0.01
"""A start may come so early after a pause as if it had been due so long ago: what timers of a
millisecond cost is caught up, and no burst comes of it."""


class StartRate:
    """Lets one caller start every 1 / `per_second` seconds, in the order in which they came.

    A caller that is cancelled leaves its place to those behind it: a start belongs to nobody before
    it is due.

    Written here because it was measured (bench/rate_limits.py does again): at 1000 starts per
    second asyncio-throttle polls and lets a second's worth go at once, and aiolimiter loses a
    quarter of the rate on uvloop, at several times the cost.
    """

    def __init__(self, per_second: float) -> None:
        self._gap_s, self._next = 1.0 / per_second, 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Returns when the caller may start."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            now = loop.time()
            self._next = max(self._next, now - SLACK_S)
            if self._next <= now:
                self._next += self._gap_s
                return
            self._arm(loop)
        turn = loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it could have started now, and does not
                self._next -= self._gap_s
                self._give(loop, loop.time())
            raise

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_at(self._next, self._give, loop, self._next)

    def _give(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        """Gives the starts that are due to those who wait. A timer runs while anybody does; one
        that fires a little early, as those of uvloop do, is not set again.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, now = self._waiting, max(now, loop.time())
        while waiting:
            if waiting[0].done():
                waiting.popleft()
            elif self._next <= now:
                waiting.popleft().set_result(None)
                self._next += self._gap_s
            else:
                self._arm(loop)
                return
