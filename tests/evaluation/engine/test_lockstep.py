"""Test that two runs stay in step, even if their remaining samples differ.

They never wait for each other without end. Time is simulated: if all wait, a test fails
immediately.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evaluation.engine.lockstep import Lockstep, Participant, Place
from tests.clock import run_counted

PLACES: list[Place] = [(task, i) for task in ("one", "other") for i in range(8)]


async def _run(
    seat: Participant,
    places: Sequence[Place],
    workers: int,
    started: list[Place],
    *,
    stops: float = math.inf,
    s: float = 0.0,
) -> None:
    """Run requests that take `s` seconds.

    After `stops` requests it ends without asking the rest.
    """
    stream = iter(places)

    async def worker() -> None:
        for place in stream:
            await seat.meet(*place)
            if len(started) >= stops:
                return
            started.append(place)
            await asyncio.sleep(s)

    await seat.take(places)
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    await seat.leave()


def _both(
    lists: Sequence[Sequence[Place]],
    workers: Sequence[int] = (1, 1),
    stops: Sequence[float] = (math.inf, math.inf),
    s: Sequence[float] = (1.0, 1.0),
) -> list[list[Place]]:
    """Return the places that each of two runs starts, in order."""
    started: list[list[Place]] = [[], []]

    async def main() -> None:
        participants = Lockstep().participants
        runs = [
            _run(participants[i], lists[i], workers[i], started[i], stops=stops[i], s=s[i])
            for i in (0, 1)
        ]
        await asyncio.gather(*runs)

    run_counted(main())
    return started


def _some() -> st.SearchStrategy[list[Place]]:
    return st.lists(st.sampled_from(PLACES), unique=True)


@given(
    st.tuples(_some(), _some()),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.0, 1.0, 2.5])),
)
def test_both_come_to_their_end_in_whatever_order_and_however_much_each_asks(
    lists: tuple[list[Place], list[Place]],
    workers: tuple[int, int],
    stops: tuple[int, int],
    s: tuple[float, float],
) -> None:
    started = _both(lists, workers, stops, s)
    for found, places, most in zip(started, lists, stops, strict=True):
        assert set(found) <= set(places)
        assert len(found) == min(len(places), most)


@given(
    st.lists(st.sampled_from(PLACES), unique=True),
    st.integers(1, 5),
    st.sampled_from([0.1, 1.0, 30.0]),
)
def test_none_is_ahead_by_more_than_its_workers(
    places: list[Place], workers: int, slower: float
) -> None:
    started: list[list[Place]] = [[], []]
    ahead: list[int] = []

    async def main() -> None:
        participants = Lockstep().participants

        async def look() -> None:
            while len(started[0]) + len(started[1]) < 2 * len(places):
                ahead.append(abs(len(started[0]) - len(started[1])))
                await asyncio.sleep(0.05)

        await asyncio.gather(
            _run(participants[0], places, workers, started[0], s=1.0),
            _run(participants[1], places, workers, started[1], s=slower),
            look(),
        )

    run_counted(main())
    assert max(ahead, default=0) <= workers
    assert sorted(started[0]) == sorted(started[1]) == sorted(places)


@pytest.mark.parametrize("workers", [(1, 1), (4, 4), (2, 7)])
def test_tasks_in_another_order_are_asked_all_the_same(workers: tuple[int, int]) -> None:
    """`compare a.yaml b.yaml` never ended if the plans list the same tasks in another order."""
    other_way_round = [*PLACES[8:], *PLACES[:8]]
    assert list(map(sorted, _both([PLACES, other_way_round], workers))) == [PLACES, PLACES]


def test_an_early_stop_of_one_side_keeps_the_other_one_no_longer_than_it_goes_on() -> None:
    """The side skips the rest of a task and starts the next one.

    From then on it counts as past the skipped part.
    """
    started: list[list[Place]] = [[], []]

    async def main() -> None:
        participants = Lockstep().participants

        async def stops_early() -> None:
            await participants[0].take(PLACES)
            for place in [*PLACES[:2], *PLACES[8:]]:
                await participants[0].meet(*place)
                started[0].append(place)
            await asyncio.Event().wait()  # it has not left

        first = asyncio.create_task(stops_early())
        await _run(participants[1], PLACES, 3, started[1])
        first.cancel()

    run_counted(main())
    assert started[0] == [*PLACES[:2], *PLACES[8:]]
    assert sorted(started[1]) == PLACES


@pytest.mark.parametrize("places", [[], [PLACES[1]]])
def test_a_run_that_has_nothing_to_ask_keeps_nobody(places: list[Place]) -> None:
    async def main() -> None:
        participants = Lockstep().participants
        await asyncio.gather(_run(participants[0], places, 2, []), participants[1].leave())

    run_counted(main())


def test_one_that_leaves_before_the_other_has_come_does_not_wait() -> None:
    async def main() -> None:
        participants = Lockstep().participants
        await participants[0].leave()
        await _run(participants[1], PLACES, 2, [])

    run_counted(main())
