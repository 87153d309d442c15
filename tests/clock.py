"""Tests that no clock decides: an event loop whose time is counted and not waited for, and waiting
for what happens.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Lets as much time pass as it would have waited; what waits for a socket or a thread waits in
    vain.
    """

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits, and nothing will ever happen"
            self.now += max(0.0, timeout)
        return found


class CountedLoop(asyncio.SelectorEventLoop):
    """A timer of an hour fires at once, at its own time. For code without sockets and threads."""

    def __init__(self) -> None:
        self._counted = _Selector()
        super().__init__(self._counted)

    def time(self) -> float:
        return self._counted.now


def run_counted(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in counted time. Fails at once where everybody waits for ever."""
    with asyncio.Runner(loop_factory=CountedLoop) as runner:
        return runner.run(main)


async def until(holds: Callable[[], bool]) -> None:
    """Waits, in real time, for what nothing tells of."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
