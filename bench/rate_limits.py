"""Measure the cost and precision of a limit of requests per second.

Run `python bench/rate_limits.py [--tiny]`. The figures are the reason why the client has its own
limiter: many waiters at a high rate and few at a low one, on uvloop. Ideal is the time that the
starts take at exactly the rate.
"""

from __future__ import annotations

import asyncio
import importlib
import resource
import sys
from collections.abc import Awaitable, Callable

import uvloop

from serve_eval.client.attempts.timing import StartRate

SETTINGS = ((4000, 1000, 4000), (512, 1000, 4000), (64, 20, 100))
"""Waiters, starts per second, starts."""
TINY = ((8, 1000, 40),)
WINDOW_S = 0.01

Acquire = Callable[[], Awaitable[object]]


def _own(rate: int) -> Acquire:
    return StartRate(rate).wait


def _asyncio_throttle(rate: int) -> Acquire:
    throttler = importlib.import_module("asyncio_throttle").Throttler(rate_limit=rate, period=1.0)
    acquire: Acquire = throttler.acquire
    return acquire


def _aiolimiter(rate: int) -> Acquire:
    limiter = importlib.import_module("aiolimiter").AsyncLimiter(1, 1.0 / rate)
    acquire: Acquire = limiter.acquire
    return acquire


LIMITERS: dict[str, Callable[[int], Acquire]] = {
    "serve_eval.client.attempts.timing": _own,
    "asyncio-throttle": _asyncio_throttle,
    "aiolimiter": _aiolimiter,
}


async def measure(
    make: Callable[[int], Acquire], waiters: int, rate: int, starts: int
) -> tuple[float, float, int]:
    """Return seconds until the last start, CPU ms per start, and most starts within WINDOW_S."""
    acquire, clock, times = make(rate), asyncio.get_running_loop().time, []
    remaining = iter(range(starts))

    async def waiter() -> None:
        for _ in remaining:
            await acquire()
            times.append(clock())

    began, cpu = clock(), _cpu_s()
    await asyncio.gather(*(waiter() for _ in range(waiters)))
    cpu_ms = 1000 * (_cpu_s() - cpu) / starts
    times.sort()
    first, most = 0, 0
    for i, time in enumerate(times):
        while time - times[first] > WINDOW_S:
            first += 1
        most = max(most, i - first + 1)
    return times[-1] - began, cpu_ms, most


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    print("\nlimits of starts per second, on uvloop")
    for name, make in LIMITERS.items():
        for waiters, rate, starts in TINY if "--tiny" in sys.argv else SETTINGS:
            try:
                took, cpu_ms, most = uvloop.run(measure(make, waiters, rate, starts))
            except ImportError:
                print(f"  {name:24} not installed")
                break
            print(
                f"  {name:24} {waiters:5} waiters at {rate:4}/s: {took:5.2f} s (ideal"
                f" {starts / rate:.2f}), {cpu_ms:.3f} ms CPU per start, at most {most} within 10 ms"
            )


if __name__ == "__main__":
    main()
