"""What runs next to the workers until the last of them is done: syncing, measuring, withdrawing,
looking.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager

from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LoadSession

SYNC_S = 0.5
"""How often what was journalled is forced to disk."""
TICK_S = 0.25
"""How often the lateness of the event loop is measured."""
LOOK_S = 1.0
"""Between two looks of the alarms."""
GC_THRESHOLDS = (50_000, 100, 1000)
"""How rarely the garbage collector runs meanwhile: at 4096 in flight it was measured to take half
of the time, at 512 a tenth. Memory stays the same, since requests leave no cycles behind."""


def upkeep(
    session: LoadSession, busy: Sequence[Lane], lanes: Sequence[Lane]
) -> list[Coroutine[object, object, None]]:
    """Return what is to run while the `busy` ones of the `lanes` are asked. None of it ends by
    itself, but by raising what ends the session.
    """
    guards = [
        session.client.liveness.watch(),
        sync(busy),
        measure_lag(session),
        observe(busy),
        withdraw(session, lanes),
    ]
    return guards if session.hang_detector is None else [*guards, session.hang_detector.watch()]


async def sync(lanes: Sequence[Lane]) -> None:
    """Force what was journalled to disk, in a thread, so that nothing waits for it."""
    while True:
        await asyncio.sleep(SYNC_S)
        for lane in lanes:
            await asyncio.to_thread(lane.journal.sync)


async def withdraw(session: LoadSession, lanes: Sequence[Lane]) -> None:
    """Take answers back as soon as a connection is found out of step; they are asked again at the
    end.
    """
    while True:
        await session.doubt.wait()
        session.doubt.clear()
        await session.withdraw(lanes)


async def observe(lanes: Sequence[Lane]) -> None:
    """Let the alarms look."""
    alarms = [lane.alarm for lane in lanes if lane.alarm is not None]
    while alarms:
        await asyncio.sleep(LOOK_S)
        for alarm in alarms:
            await alarm.look()


async def measure_lag(session: LoadSession) -> None:
    """Note by how much a timer of ours was late at most."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + TICK_S
        await asyncio.sleep(TICK_S)
        session.lag_s = max(session.lag_s, clock() - due)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely within the block."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
