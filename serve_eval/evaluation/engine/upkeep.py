"""Run background work next to the workers: syncing, measuring, withdrawing and watching."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LoadSession

SYNC_S = 0.5
"""Seconds between two syncs of the journals to disk."""
TICK_S = 0.25
"""Seconds between two measurements of the event loop's lateness."""
LOOK_S = 1.0
"""Seconds between two looks of the alarms."""


def upkeep(
    session: LoadSession, busy: Sequence[Lane], lanes: Sequence[Lane]
) -> list[Coroutine[object, object, None]]:
    """Return the coroutines to run while the `busy` ones of the `lanes` are asked.

    They end only by raising an error that ends the session.
    """
    guards = [
        session.client.liveness.watch(),
        sync(busy),
        measure_lag(session),
        observe(busy),
        withdraw(session, lanes),
        session.watch_starvation(),
    ]
    return guards if session.hang_detector is None else [*guards, session.hang_detector.watch()]


async def sync(lanes: Sequence[Lane]) -> None:
    """Sync the journals to disk, in a thread so that nothing else waits."""
    while True:
        await asyncio.sleep(SYNC_S)
        for lane in lanes:
            await asyncio.to_thread(lane.journal.sync)


async def withdraw(session: LoadSession, lanes: Sequence[Lane]) -> None:
    """Withdraw answers as soon as a connection is found out of step.

    Their samples are asked again next if an early stop waits for them, else at the end.
    """
    while True:
        await session.doubt.wait()
        session.doubt.clear()
        await session.withdraw(lanes)


async def observe(lanes: Sequence[Lane]) -> None:
    """Call the alarms at regular intervals."""
    alarms = [lane.alarm for lane in lanes if lane.alarm is not None]
    while alarms:
        await asyncio.sleep(LOOK_S)
        for alarm in alarms:
            await alarm.look()


async def measure_lag(session: LoadSession) -> None:
    """Record the largest lateness of a timer."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + TICK_S
        await asyncio.sleep(TICK_S)
        session.lag_s = max(session.lag_s, clock() - due)
