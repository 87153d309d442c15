from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from serve_eval.client.attempts.quota import SLACK_S, StartRate
from tests.clock import run_counted


@pytest.mark.parametrize(("per_second", "starts", "callers"), [(200.0, 100, 50), (50.0, 20, 1)])
def test_starts_are_spaced_evenly_and_no_more_than_allowed(
    per_second: float, starts: int, callers: int
) -> None:
    async def main() -> list[float]:
        rate, clock = StartRate(per_second), asyncio.get_running_loop().time
        times: list[float] = []
        numbers = iter(range(starts))

        async def caller() -> None:
            for _ in numbers:
                await rate.wait()
                times.append(clock())

        await asyncio.gather(*(caller() for _ in range(callers)))
        return times

    times = run_counted(main())
    assert times == pytest.approx([i / per_second for i in range(starts)])


def test_after_a_pause_there_is_no_burst() -> None:
    async def main() -> float:
        rate, clock = StartRate(100.0), asyncio.get_running_loop().time
        await rate.wait()
        await asyncio.sleep(0.3)
        began = clock()
        for _ in range(11):
            await rate.wait()
        return clock() - began

    assert run_counted(main()) >= 0.089


@pytest.mark.parametrize("given_up_at", [0.0, 3.0, 3.25, 5.0])
def test_who_is_cancelled_leaves_the_turn_to_who_comes_next(given_up_at: float) -> None:
    """Regression: an early stop blocked the next task for 4 minutes.

    It happened with 512 requests in flight at 2 starts per second.
    """

    async def main() -> tuple[float, list[float]]:
        rate, clock = StartRate(2.0), asyncio.get_running_loop().time
        times: list[float] = []

        async def caller() -> None:
            await rate.wait()
            times.append(clock())

        lane = [asyncio.create_task(caller()) for _ in range(512)]
        await asyncio.sleep(given_up_at)
        for task in lane:
            task.cancel()
        given_up = clock()
        await asyncio.gather(*(caller() for _ in range(5)), *lane, return_exceptions=True)
        assert times == sorted(times)
        return given_up, times

    given_up, times = run_counted(main())
    later = [time for time in times if time >= given_up][-5:]
    assert later[0] - given_up <= 0.5
    assert later == pytest.approx([later[0] + i / 2 for i in range(5)], abs=SLACK_S)
    assert all(b - a >= 0.5 - SLACK_S for a, b in pairwise(times))


def test_a_turn_that_was_given_to_someone_cancelled_in_the_same_moment_is_not_lost() -> None:
    async def main() -> list[tuple[str, float]]:
        rate, loop = StartRate(1.0), asyncio.get_running_loop()
        started: list[tuple[str, float]] = []

        async def caller(name: str) -> None:
            await rate.wait()
            started.append((name, loop.time()))

        await rate.wait()
        first = asyncio.create_task(caller("first"))
        second = asyncio.create_task(caller("second"))
        await asyncio.sleep(0)
        # Cancel in the turn of the loop that gives the first start, before its task has run.
        loop.call_at(1.0, first.cancel)
        await asyncio.gather(first, second, return_exceptions=True)
        return started

    [(name, at)] = run_counted(main())
    assert name == "second"
    assert at == 1.0
