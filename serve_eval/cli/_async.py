"""Run the event loop of the process and handle SIGINT and SIGTERM while it runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from serve_eval.cli._interrupts import NUMBERS, leave
from serve_eval.errors import EndpointError

T = TypeVar("T")


class Interrupted(Exception):
    """The user or a scheduler ended the run; finished answers are in the run folder."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop if it is installed; None stands for Python's own event loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end.

    The first SIGINT or SIGTERM cancels it, so that servers are stopped and files closed, and raises
    Interrupted. A second one ends the process immediately. Afterwards the previous signal handlers
    are restored. An EndpointError says how the server ended, if `serve-eval serve` kept it up.
    """
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in NUMBERS}

    async def guard() -> T:
        task = asyncio.ensure_future(main)

        def stop(number: int) -> None:
            signals.append(number)
            if len(signals) > 1:
                leave()
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in NUMBERS:
            loop.add_signal_handler(number, stop, number)
        return await task

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(guard())
    except asyncio.CancelledError:
        raise Interrupted from None
    except EndpointError as error:
        from serve_eval.workflows.servers.reuse import explain_lost

        raise explain_lost(error) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
