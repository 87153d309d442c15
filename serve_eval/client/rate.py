"""At most so many starts per second, evenly spaced."""

from __future__ import annotations

import asyncio

SLACK_S = 0.01
"""A start may come so early after a pause as if it had been due so long ago: what timers of a millisecond cost is
caught up, and no burst comes of it."""


class StartRate:
    """Gives every caller its own time to start: 1 / `per_second` seconds behind the one before.

    Written here because it was measured (bench/rate_limits.py does again): at 1000 starts per second asyncio-throttle
    polls and lets a second's worth go at once, and aiolimiter loses a quarter of the rate on uvloop, at several times
    the cost.
    """

    def __init__(self, per_second: float) -> None:
        self._gap_s, self._next = 1.0 / per_second, 0.0

    async def wait(self) -> None:
        """Returns when the caller may start."""
        now = asyncio.get_running_loop().time()
        due = max(self._next, now - SLACK_S)
        self._next = due + self._gap_s
        if due > now:
            await asyncio.sleep(due - now)
