"""Space the starts of requests evenly, up to a rate."""

from __future__ import annotations

import asyncio
from collections import deque

SLACK_S = 0.01
"""After a pause, a start may come this much early. It makes up for the delay of millisecond timers
without a burst."""


class StartRate:
    """Lets one caller start every 1 / `per_second` seconds, in the order of arrival.

    A cancelled caller leaves its place to the next: a start belongs to no caller before it is due.

    Written here because of measurements (repeat them with bench/rate_limits.py). At 1000 starts per
    second asyncio-throttle polls and releases a second's worth in a burst. aiolimiter loses a
    quarter of the rate on uvloop, at several times the cost.
    """

    def __init__(self, per_second: float) -> None:
        self._gap_s, self._next = 1.0 / per_second, 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Wait until the caller may start."""
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
            if not turn.cancelled():  # it was due and does not start
                self._next -= self._gap_s
                self._give(loop, loop.time())
            raise

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_at(self._next, self._give, loop, self._next)

    def _give(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        """Release the waiting callers whose starts are due.

        A timer runs while any caller waits. One that fires slightly early, as on uvloop, is not set
        again.
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
