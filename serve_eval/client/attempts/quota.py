"""Keep to the quota of an endpoint: the starts of a minute, and the pauses that it asks for."""

from __future__ import annotations

import asyncio
import time

from asyncio_throttle.throttler import Throttler

from serve_eval.client.attempts.retry import RETRY_AFTER_CAP_S

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
