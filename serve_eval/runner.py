"""Tasks against one client: one pool of workers over one stream of samples, every result in a journal when it is
had."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from serve_eval import choices
from serve_eval.client.client import Client
from serve_eval.concurrency import Automatic, Fixed
from serve_eval.hung import Hung
from serve_eval.journal import Journal, Record
from serve_eval.schema import Load, Response
from serve_eval.tally import Tally
from serve_eval.watch import Watch

SYNC_S = 0.5
"""How often what was journalled is forced to disk."""
TICK_S = 0.25
"""How often the lateness of the event loop is measured."""
LOOK_S = 1.0
"""Between two looks of the alarms."""
GC_THRESHOLDS = (50_000, 100, 1000)
"""How rarely the garbage collector runs meanwhile: at 4096 in flight it was measured to take half of the time, at 512 a
tenth. Memory stays the same, since requests leave no cycles behind."""


class Progress(Protocol):
    """Told how each task goes; several may be under way. The library itself never prints."""

    def begin(self, task: str, planned: int, had: int) -> None: ...

    def update(self, task: str, done: int, failed: int, value: float | None) -> None: ...

    def end(self, task: str) -> None: ...


class Prefix(Protocol):
    """Looks at a task while it is asked. `look` says whether its verdict is decided, so that no more is needed."""

    def look(self) -> bool: ...


class Alarm(Protocol):
    """Looks at a task while it is asked, and tells what it sees."""

    async def look(self) -> None: ...


class Lane:
    """One task of a run: the samples to ask, by position in the order of their starts, and where results go. With
    `early` it ends as soon as that is decided; `meet` is waited for before each of them is sent; `alarm` looks at it
    now and then."""

    def __init__(
        self,
        name: str,
        tally: Tally,
        journal: Journal,
        positions: Sequence[int],
        early: Prefix | None = None,
        meet: Callable[[int], Awaitable[None]] | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        self.name, self.tally, self.journal, self.early, self.meet = name, tally, journal, early, meet
        self.alarm = alarm
        self.positions, self.begun, self.decided = positions, False, False
        self.left = self.waiting = len(positions)
        self.asking: set[asyncio.Task[None]] = set()


class Session:
    """What the engine does between the opening of a client and its closing: the load on the endpoint and on us.
    `at_first` is called when the first result was journalled; `hung` ends the session when a server hangs."""

    def __init__(
        self,
        client: Client,
        order_seed: int,
        at_first: Callable[[], None] | None = None,
        hung: Hung | None = None,
    ) -> None:
        self.client, self._order_seed, self.at_first, self.hung = client, order_seed, at_first, hung
        limits = client.limits
        self.pace = Automatic(limits) if limits.concurrency == "auto" else Fixed(limits.concurrency)
        self.workers = self.finished = 0
        self.lag_s = self.wall_s = 0.0

    def load(self) -> Load:
        return Load(
            limits=self.client.limits,
            order_seed=self._order_seed,
            finished=self.finished,
            wall_s=round(self.wall_s, 3),
            max_in_flight=self.client.max_in_flight,
            retries=self.client.retries,
            retry_budget=self.client.retry_budget or 0,
            loop_lag_s=round(self.lag_s, 3),
            steps=self.pace.steps,
            cancelled=self.client.cancelled,
        )


async def ask(
    session: Session, lanes: Iterable[Lane], *, progress: Progress | None = None, watch: Watch | None = None
) -> None:
    """Asks every sample of the lanes, one lane after the other without a pause between them.

    A sample counts as had when its record was written. When a lane is decided, its requests in flight are cancelled,
    and their workers go on with the next lane. Raises EndpointError when `watch`, the client's door or the session's
    `hung` gives the endpoint up, and JournalError when a record cannot be written; requests in flight are then
    cancelled.
    """
    busy = [lane for lane in lanes if lane.left]
    if not busy:
        return
    left = sum(lane.left for lane in busy)
    stream = ((lane, i) for lane in busy for i in _starting(lane, progress))
    clock = asyncio.get_running_loop().time
    offset, idle = session.wall_s - clock(), asyncio.Event()
    client, pace = session.client, session.pace

    def start_workers() -> None:
        for _ in range(min(pace.limit - session.workers, left)):
            session.workers += 1
            workers.create_task(worker())

    def end(lane: Lane, worker: asyncio.Task[None]) -> None:
        """The lane is decided: nothing more of it is asked, and what is in flight is given up."""
        nonlocal left
        left -= lane.waiting
        lane.waiting, lane.decided = 0, True
        for other in lane.asking - {worker}:
            other.cancel()
        if progress is not None and lane.left:
            progress.end(lane.name)
        lane.left = 0

    async def worker() -> None:
        nonlocal left
        me = asyncio.current_task()
        assert me is not None
        try:
            while session.workers <= pace.limit and (work := next(stream, None)) is not None:
                left -= 1
                lane, i = work
                lane.waiting -= 1
                tally, sample = lane.tally, lane.tally.samples[i]
                lane.asking.add(me)
                try:
                    if lane.meet is not None:
                        await lane.meet(i)
                    result = await choices.send(client, tally.task, sample)
                except asyncio.CancelledError:
                    if not lane.decided or me.uncancel():
                        raise
                    continue
                finally:
                    lane.asking.discard(me)
                if isinstance(result, Response):
                    lane.journal.append(Record(id=sample.id, response=result))
                else:
                    lane.journal.append(Record(id=sample.id, failure=result))
                tally.add(i, result)
                lane.left -= 1
                session.finished += 1
                if session.finished == 1 and session.at_first is not None:
                    session.at_first()
                if progress is not None:
                    progress.update(lane.name, tally.scored, tally.failed, tally.running_value)
                    if not lane.left:
                        progress.end(lane.name)
                if lane.early is not None and not lane.decided and lane.early.look():
                    end(lane, me)
                if watch is not None:
                    watch.see(result)
                pace.finished(result, clock() + offset)
                if session.workers < pace.limit:
                    start_workers()
        finally:
            session.workers -= 1
            if not session.workers:
                idle.set()

    try:
        with _rare_collections():
            async with asyncio.TaskGroup() as workers:
                start_workers()
                guards = [client.door.watch(), _sync(busy), _measure(session), _watch_course(busy)]
                guards += [session.hung.watch()] if session.hung is not None else []
                company = [workers.create_task(guard) for guard in guards]
                await idle.wait()
                for task in company:
                    task.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        session.wall_s = clock() + offset
        for lane in busy:
            if progress is not None and lane.begun and lane.left:
                progress.end(lane.name)


def _starting(lane: Lane, progress: Progress | None) -> Iterator[int]:
    """The positions of a lane; its progress begins with the first."""
    lane.begun = True
    if progress is not None:
        tally = lane.tally
        progress.begin(lane.name, len(tally.samples), tally.scored)
        progress.update(lane.name, tally.scored, tally.failed, tally.running_value)
    for i in lane.positions:
        if lane.decided:
            return
        yield i


async def _sync(lanes: Sequence[Lane]) -> None:
    """Forces what was journalled to disk, in a thread, so that nothing waits for it."""
    while True:
        await asyncio.sleep(SYNC_S)
        for lane in lanes:
            await asyncio.to_thread(lane.journal.sync)


async def _watch_course(lanes: Sequence[Lane]) -> None:
    """Lets the alarms look."""
    alarms = [lane.alarm for lane in lanes if lane.alarm is not None]
    while alarms:
        await asyncio.sleep(LOOK_S)
        for alarm in alarms:
            await alarm.look()


async def _measure(session: Session) -> None:
    """Notes by how much a timer of ours was late at most."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + TICK_S
        await asyncio.sleep(TICK_S)
        session.lag_s = max(session.lag_s, clock() - due)


@contextmanager
def _rare_collections() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
