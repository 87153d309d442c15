"""Time the attempts: space their starts to keep to quotas, and end those that overrun.

One asyncio timer per sample and one per piece read were measured to cost up to a fifth of a
request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from asyncio_throttle.throttler import Throttler

from serve_eval.client.attempts.outcome import RETRY_AFTER_CAP_S

if TYPE_CHECKING:
    from serve_eval.client.wire_format.reply import Reply


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


MAX_TICK_S, MIN_TICK_S = 1.0, 0.01
TICKS = 50
"""The timer runs this number of times within the shortest limit."""


class Wait:
    """One sample in progress.

    `reply` is the reply that is expected, None if nothing is expected now. `over` names the limit
    that ended it.
    """

    __slots__ = ("_cancelling", "over", "reply", "task", "until")

    def __init__(self, task: asyncio.Task[object], until: float) -> None:
        self.task, self.until = task, until
        self.reply: Reply | None = None
        self.over: str | None = None
        self._cancelling = task.cancelling()

    def cut_off(self, limit: str) -> bool:
        """Return True if `limit` alone caused the CancelledError just caught, and consume it."""
        if self.over != limit:
            return False
        self.over = None
        return self.task.uncancel() <= self._cancelling

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the sample's time within the block."""
        began, left = time.monotonic(), self.until
        self.until = math.inf
        try:
            yield
        finally:
            self.until = left + time.monotonic() - began


SAMPLE, STALL = "sample", "stall"


class Patience:
    """Cancels the task of a wait after `sample_s`, or after `stall_s` without data, in seconds.

    While `held`, silence cancels nothing: a probe is finding out if the whole endpoint is silent.
    """

    def __init__(self, *, sample_s: float, stall_s: float) -> None:
        self._sample_s, self._stall_s = sample_s, stall_s
        self._loop = asyncio.get_running_loop()
        self.held = False
        self._expecting, self._began_at, self._heard_at = 0, 0.0, 0.0
        self._tick_s = min(MAX_TICK_S, max(MIN_TICK_S, min(sample_s, stall_s) / TICKS))
        self._waits: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, now: float) -> Wait:
        """Return a wait of the current task that begins now (monotonic clock)."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        wait = Wait(task, now + self._sample_s)
        self._waits.add(wait)
        if self._timer is None:
            self._arm()
        return wait

    def expect(self, wait: Wait, reply: Reply) -> None:
        """Expect data from the endpoint from now on."""
        if not self._expecting:
            self._began_at = time.monotonic()
        self._expecting += 1
        wait.reply = reply

    def expect_no_more(self, wait: Wait, now: float) -> None:
        """Note that the expected reply came or is no longer expected."""
        if (reply := wait.reply) is not None:
            self._expecting -= 1
            wait.reply = None
            self._hear(reply, now)

    def heard_at(self) -> float:
        """Return the time of the last data from the endpoint (monotonic clock)."""
        now = time.monotonic()
        for wait in self._waits:
            if wait.reply is not None:
                self._hear(wait.reply, now)
        return self._heard_at

    def longest_wait_s(self) -> float:
        """Return the seconds since the earliest request that has no byte of a reply; 0 if none."""
        sent = [w.reply.read_at for w in self._waits if w.reply is not None and not w.reply.status]
        return time.monotonic() - min(sent) if sent else 0.0

    def silent_s(self) -> float:
        """Return the seconds without data while some was expected; 0 if none is expected."""
        return time.monotonic() - max(self._began_at, self.heard_at()) if self._expecting else 0.0

    def heard(self) -> None:
        """Note that the endpoint answered another client."""
        self._heard_at = time.monotonic()

    def _hear(self, reply: Reply, now: float) -> None:
        if reply.status:
            heard_at = reply.heard_at
            if heard_at > now:
                heard_at = now
            if heard_at > self._heard_at:
                self._heard_at = heard_at

    def end(self, wait: Wait) -> None:
        """Stop watching a wait: its task is no longer cancelled."""
        self._waits.discard(wait)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._look)

    def _look(self) -> None:
        self._timer, now = None, time.monotonic()
        for wait in self._waits:
            stalled = (
                not self.held
                and wait.reply is not None
                and now >= wait.reply.heard_at + self._stall_s
            )
            if wait.over is None and (stalled or now >= wait.until):
                wait.over = SAMPLE if now >= wait.until else STALL
                wait.task.cancel()
        if self._waits:
            self._arm()
