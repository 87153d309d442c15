"""Measure one client in its own process.

Run `python bench/one_client.py ours --base-url URL --n 1000`. It prints one JSON line. CPU and wall
time are those of the request phase: after the imports and with the session open. Peak memory is
that of the process. `ok` counts answers that were checked to be whole and to belong to their
request.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import uvloop
from cores import CLIENT, pin, raise_open_files

ABSENT = "not installed: "
"""Precedes the name of a missing package."""
NAMES = {
    "ours": ("ours", "opened"),
    "aiohttp": ("bare_aiohttp", "opened"),
    "aiohttp_idiomatic": ("bare_aiohttp", "opened_idiomatic"),
    "openai_async": ("openai_sdk", "opened"),
    "openai_aiohttp": ("openai_sdk", "opened_aiohttp"),
    "openai_sync": ("openai_sdk", "opened_sync"),
}


class Phase(AbstractContextManager["Phase"]):
    """CPU and wall seconds of a block."""

    def __enter__(self) -> Phase:
        self._cpu, self._began = _cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.wall_s, self.cpu_s = time.perf_counter() - self._began, _cpu_s() - self._cpu


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def with_tasks(
    opened: Any, n: int, concurrency: int
) -> tuple[Counter[str], Phase, list[float]]:
    """Send the requests from a fixed pool of tasks over one iterator.

    The last result holds the times to the first token, if the client reports them.
    """
    seen: Counter[str] = Counter()
    remaining: Iterator[int] = iter(range(n))

    async def worker() -> None:
        for i in remaining:
            try:
                seen["ok" if await ask(i) else "wrong"] += 1
            except Exception as error:
                seen[type(error).__name__] += 1

    async with opened as ask:
        with Phase() as phase:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrency, n)):
                    workers.create_task(worker())
        return seen, phase, getattr(ask, "first_token_s", [])


def with_threads(opened: Any, n: int, concurrency: int) -> tuple[Counter[str], Phase]:
    """Send the requests from a fixed pool of threads over one iterator."""
    seen: Counter[str] = Counter()
    lock, remaining = threading.Lock(), iter(range(n))

    def worker() -> None:
        for i in remaining:
            try:
                what = "ok" if ask(i) else "wrong"
            except Exception as error:
                what = type(error).__name__
            with lock:
                seen[what] += 1

    with opened as ask, Phase() as phase:
        threads = [threading.Thread(target=worker) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return seen, phase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    pin(CLIENT)
    raise_open_files()
    module, function = NAMES[given.name]
    try:
        opened = getattr(importlib.import_module(f"clients.{module}"), function)
    except ModuleNotFoundError as error:
        sys.exit(f"{ABSENT}{error.name}")
    session = opened(given.base_url, given.concurrency, given.stream)
    first_token_s: list[float] = []
    if given.name == "openai_sync":
        seen, phase = with_threads(session, given.n, given.concurrency)
    else:
        seen, phase, first_token_s = uvloop.run(with_tasks(session, given.n, given.concurrency))
    ok = seen.pop("ok", 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024 if sys.platform != "darwin" else 1024**2
    )
    measured = {
        "n": given.n,
        "ok": ok,
        "errors": seen,
        "wall_s": phase.wall_s,
        "cpu_s": phase.cpu_s,
    }
    first_s = (
        statistics.median(first_token_s[given.concurrency :] or first_token_s)
        if first_token_s
        else None
    )
    print(json.dumps({**measured, "peak_rss_mb": peak, "first_token_s": first_s}))


if __name__ == "__main__":
    main()
