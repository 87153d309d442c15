"""Space the starts of requests to keep to a rate and to the quota of an endpoint."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from asyncio_throttle.throttler import Throttler

from serve_eval.client.attempts.outcome import RETRY_AFTER_CAP_S

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


PERIOD_S = 60.5
"""A minute and the time by which the delays of two requests to a server may differ, so that no
minute of the server's own clock gets more starts than the quota."""
POLL_S = 0.05
"""Seconds between two readings of the clock, of which only the first of the waiting callers makes
any."""


_throttlers: dict[tuple[str, int], Throttler] = {}
"""Those of this process, which the clients of an endpoint share, as they share its quota."""


class Quota:
    """Lets callers start in the order of their arrival, as far as the quota of `url` allows.

    At most `per_minute` start within any PERIOD_S (None: no such limit), with those of all other
    clients of this process. They may start in a burst: what a quota counts is the minute.
    `pause` keeps the callers from starting.
    """

    def __init__(self, url: str, per_minute: int | None) -> None:
        self._throttler: Throttler | None = None
        if per_minute is not None:
            key = url, per_minute
            if key not in _throttlers:
                _throttlers[key] = Throttler(per_minute, PERIOD_S, retry_interval=POLL_S)
            self._throttler = _throttlers[key]
        self._turn, self._until = asyncio.Lock(), 0.0

    @property
    def open(self) -> bool:
        """True if a caller may start without waiting, whatever started before."""
        return self._throttler is None and self._until <= time.monotonic()

    def pause(self, seconds: float) -> None:
        """Let nobody start for this time, at most RETRY_AFTER_CAP_S.

        A server may ask again.
        """
        self._until = max(self._until, time.monotonic() + min(seconds, RETRY_AFTER_CAP_S))

    async def wait(self) -> None:
        """Wait until the caller may start."""
        async with self._turn:
            while (left := self._until - time.monotonic()) > 0:  # noqa: ASYNC110 - it may grow
                await asyncio.sleep(left)
            if self._throttler is not None:
                async with self._throttler:
                    pass
