"""Run tests without real time: an event loop that counts time, and waiting for events."""

import asyncio
import selectors


class _Selector(selectors.SelectSelector):
    """Advances the time by the wait instead of waiting.

    Code that waits for a socket or a thread waits in vain.
    """

    now = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found:
            assert timeout is not None, "everything waits, and nothing will ever happen"
            self.now += max(0.0, timeout)
        return found


class CountedLoop(asyncio.SelectorEventLoop):
    """A loop in which a timer of an hour fires immediately, at its own time.

    For code without sockets and threads.
    """

    def __init__(self):
        self._counted = _Selector()
        super().__init__(self._counted)

    def time(self):
        return self._counted.now


def run_counted(main):
    """Run `asyncio.run` in counted time, and fail immediately if everything waits without end."""
    with asyncio.Runner(loop_factory=CountedLoop) as runner:
        return runner.run(main)


async def until(holds):
    """Wait, in real time, for something that sends no event. Raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
