"""Report the progress of a long local step, such as reading many cases, and limit its time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from serve_eval.errors import PlanError, ServeEvalError

VARIABLE = "SERVE_EVAL_READING_TIMEOUT"
LIMIT_S = 300.0
"""Seconds that each step may take, unless the variable sets another limit."""
FIRST_S = 1.0
"""Seconds that a step takes before it reports progress."""
EVERY = 64
"""Items between two readings of the clock."""


Tell = Callable[[str, bool], None]
"""Receives a progress line: its text, and whether it is the last of its step."""


def _to_nobody(line: str, last: bool) -> None:
    pass


_tell: ContextVar[Tell] = ContextVar("serve_eval.pace", default=_to_nobody)


@contextmanager
def notify_to(tell: Tell) -> Iterator[None]:
    """Send the progress lines of the steps in the block to `tell`; the command line shows them."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


class Pace:
    """The progress of a step over `total` items, counted in `unit`.

    `at` raises `error` once the time limit is reached.
    """

    def __init__(
        self,
        name: str,
        total: int,
        unit: str,
        error: type[ServeEvalError] = PlanError,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._total, self._unit, self._error, self._clock = (
            name,
            total,
            unit,
            error,
            clock,
        )
        self._start, self._limit_s = clock(), _limit_s()
        self._calls = self._done = 0
        self._told = False

    def at(self, done: int) -> None:
        """Record the number of items done. Cheap: it reads the clock only every EVERY calls."""
        self._done = done
        self._calls += 1
        if self._calls % EVERY == 0:
            self._look()

    def _look(self) -> None:
        took_s = self._clock() - self._start
        if took_s >= self._limit_s:
            reached = f"{self._done} of {self._total} {self._unit}"
            raise self._error(
                f"{self._name}: took longer than {self._limit_s:g} s; it had done {reached}",
                hint=(
                    "Split it into smaller files, or allow more time:"
                    f" {VARIABLE}={2 * self._limit_s:g} (seconds)."
                ),
            )
        if took_s >= FIRST_S:
            self._told = True
            _tell.get()(
                f"{self._name}: {self._done} of {self._total} {self._unit}, {took_s:.0f} s", False
            )

    def end(self) -> None:
        """Report that the step is over, if it reported progress before."""
        if self._told:
            took_s = self._clock() - self._start
            _tell.get()(
                f"{self._name}: {self._done} of {self._total} {self._unit}, {took_s:.0f} s", True
            )
            self._told = False


def _limit_s() -> float:
    given = os.environ.get(VARIABLE, "")
    try:
        limit_s = float(given) if given else LIMIT_S
    except ValueError:
        limit_s = 0.0
    if not limit_s > 0:
        raise PlanError(f"{VARIABLE}={given}: not a number of seconds")
    return limit_s
