"""Enforce the time limits of all requests in flight with one timer.

One asyncio timer per sample and one per piece read were measured to cost up to a fifth of a
request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.client.wire_format.reply import Reply

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
