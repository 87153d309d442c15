from __future__ import annotations

import asyncio

import pytest

from serve_eval.client.rate import StartRate


@pytest.mark.parametrize(("per_second", "starts", "callers"), [(200.0, 100, 50), (50.0, 20, 1)])
def test_starts_are_spaced_evenly_and_no_more_than_allowed(per_second: float, starts: int, callers: int) -> None:
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

    times = sorted(asyncio.run(main()))
    assert times[-1] - times[0] >= (starts - 1) / per_second - 0.02
    # In any 50 ms no more than the rate allows, and what the slack and a late timer let through.
    for i, time in enumerate(times):
        within = sum(time <= other < time + 0.05 for other in times[i:])
        assert within <= per_second * 0.07 + 2


def test_after_a_pause_there_is_no_burst() -> None:
    async def main() -> float:
        rate, clock = StartRate(100.0), asyncio.get_running_loop().time
        await rate.wait()
        await asyncio.sleep(0.3)
        began = clock()
        for _ in range(11):
            await rate.wait()
        return clock() - began

    assert asyncio.run(main()) >= 0.08
