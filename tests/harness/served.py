"""A simulated endpoint beside the test, for what runs an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launchers._simulated.simulator import STATS, SimulatorConfig, Stats, create_app, serve


@contextmanager
def served(**config: Any) -> Iterator[tuple[str, Stats]]:
    """Its base URL and what it has seen. It ends with the block."""
    app = create_app(SimulatorConfig(record=True, **config))
    ready, ended = threading.Event(), threading.Event()
    told: dict[str, str] = {}

    async def main() -> None:
        async with serve(app) as url:
            told["url"] = url
            ready.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield told["url"], app[STATS]
    finally:
        ended.set()
        thread.join()
