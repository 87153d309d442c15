"""Two runs go in step, whatever each of them has left to ask, and never wait for each other for ever."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.meeting import Meeting, Place, Seat


async def _run(seat: Seat, places: list[Place], workers: int, started: list[Place], pause_s: float = 0.0) -> None:
    stream = iter(places)

    async def worker() -> None:
        for place in stream:
            await seat.meet(*place)
            started.append(place)
            await asyncio.sleep(pause_s)

    await seat.take(places)
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    await seat.leave()


@given(
    st.sets(st.integers(0, 19)),
    st.sets(st.integers(0, 19)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_both_come_to_their_end_whatever_they_have_in_common(
    one: set[int], other: set[int], ones: int, others: int, seed: int
) -> None:
    order = list(range(20))
    random.Random(seed).shuffle(order)
    lists: list[list[Place]] = [[("task", i) for i in order if i in mine] for mine in (one, other)]
    started: list[list[Place]] = [[], []]

    async def both() -> None:
        meeting = Meeting()
        runs = zip(meeting.seats, lists, (ones, others), started, strict=True)
        async with asyncio.timeout(10):
            await asyncio.gather(*(_run(*run) for run in runs))

    asyncio.run(both())
    assert [sorted(found) for found in started] == [sorted(places) for places in lists]


def test_the_faster_one_is_never_ahead_by_more_than_its_workers() -> None:
    places: list[Place] = [("task", i) for i in range(30)]
    quick: list[Place] = []
    slow: list[Place] = []
    ahead: list[int] = []

    async def both() -> None:
        meeting = Meeting()
        async with asyncio.TaskGroup() as group:
            group.create_task(_run(meeting.seats[0], places, 3, quick))
            task = group.create_task(_run(meeting.seats[1], places, 3, slow, pause_s=0.001))
            while not task.done():
                ahead.append(len(quick) - len(slow))
                await asyncio.sleep(0)

    asyncio.run(both())
    assert max(ahead) <= 3
    assert quick == slow == places


@pytest.mark.parametrize("places", [[], [("task", 1)]])
def test_a_run_that_has_nothing_to_ask_keeps_nobody(places: list[Place]) -> None:
    async def both() -> None:
        meeting = Meeting()
        async with asyncio.timeout(10):
            await asyncio.gather(_run(meeting.seats[0], places, 2, []), meeting.seats[1].leave())

    asyncio.run(both())
