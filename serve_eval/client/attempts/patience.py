"""Time limits of every request in flight, kept by one timer for all of them.

A timer of asyncio per sample and another per piece read were measured to cost as much as a fifth of
a request.
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
"""The shortest limit is kept to one part in so many."""


class Wait:
    """One sample in progress. `reply` is what its endpoint is expected to be heard by, None when
    nothing is expected now. `over` says which limit cut it off.
    """

    __slots__ = ("_cancelling", "over", "reply", "task", "until")

    def __init__(self, task: asyncio.Task[object], until: float) -> None:
        self.task, self.until = task, until
        self.reply: Reply | None = None
        self.over: str | None = None
        self._cancelling = task.cancelling()

    def cut_off(self, limit: str) -> bool:
        """Whether the CancelledError just caught was `limit`'s doing and nobody else's; it is then
        dealt with.
        """
        if self.over != limit:
            return False
        self.over = None
        return self.task.uncancel() <= self._cancelling

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The sample's time stands still within the block."""
        began, left = time.monotonic(), self.until
        self.until = math.inf
        try:
            yield
        finally:
            self.until = left + time.monotonic() - began


SAMPLE, STALL = "sample", "stall"


class Patience:
    """Cancels the task of a wait that lasts longer than `sample_s`, or hears no data for `stall_s`,
    in seconds.

    While `held`, silence cuts off nothing: somebody finds out whether the endpoint as a whole is
    silent.
    """

    def __init__(self, *, sample_s: float, stall_s: float) -> None:
        self._sample_s, self._stall_s = sample_s, stall_s
        self.held = False
        self._expecting, self._began_at, self._heard_at = 0, 0.0, 0.0
        self._tick_s = min(MAX_TICK_S, max(MIN_TICK_S, min(sample_s, stall_s) / TICKS))
        self._waits: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, now: float) -> Wait:
        """A wait of the current task that begins now (monotonic clock)."""
        task = asyncio.current_task()
        assert task is not None
        wait = Wait(task, now + self._sample_s)
        self._waits.add(wait)
        if self._timer is None:
            self._arm()
        return wait

    def expect(self, wait: Wait, reply: Reply) -> None:
        """From now on the endpoint is to be heard."""
        if not self._expecting:
            self._began_at = time.monotonic()
        self._expecting += 1
        wait.reply = reply

    def expect_no_more(self, wait: Wait, now: float) -> None:
        """What was expected came, or is given up."""
        if (reply := wait.reply) is not None:
            self._expecting, wait.reply = self._expecting - 1, None
            self._hear(reply, now)

    def heard_at(self) -> float:
        """Time of the last data from the endpoint (monotonic clock)."""
        now = time.monotonic()
        for wait in self._waits:
            if wait.reply is not None:
                self._hear(wait.reply, now)
        return self._heard_at

    def silent_s(self) -> float:
        """Seconds without data for any wait, as far as one was expected all the time; 0 when none
        is.
        """
        return time.monotonic() - max(self._began_at, self.heard_at()) if self._expecting else 0.0

    def heard(self) -> None:
        """The endpoint answered somebody else."""
        self._heard_at = time.monotonic()

    def _hear(self, reply: Reply, now: float) -> None:
        if reply.status:
            self._heard_at = max(self._heard_at, min(reply.heard_at, now))

    def end(self, wait: Wait) -> None:
        """Its task is never cancelled from now on."""
        self._waits.discard(wait)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._look)

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
