"""Tasks against one client: one pool of workers over one stream of samples, every result in a journal when it is
had."""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

from serve_eval.client.client import Client
from serve_eval.errors import JournalError
from serve_eval.evaluation.endpoint.hang_detector import Hung
from serve_eval.evaluation.engine import send
from serve_eval.evaluation.engine.accumulator import Tally
from serve_eval.evaluation.engine.circuit_breaker import Watch
from serve_eval.evaluation.engine.concurrency import Automatic, Fixed
from serve_eval.evaluation.storage.journal import Journal, Record
from serve_eval.evaluation.storage.reply_proofs import Proofs, Step, doubtful, withdraw
from serve_eval.schema import Load, Progress, Response

ROUNDS = 2
"""After so many rounds whose answers had to be withdrawn, each request has a connection of its own: what connections
give that end without a proof would be withdrawn in every round."""
SYNC_S = 0.5
"""How often what was journalled is forced to disk."""
TICK_S = 0.25
"""How often the lateness of the event loop is measured."""
LOOK_S = 1.0
"""Between two looks of the alarms."""
GC_THRESHOLDS = (50_000, 100, 1000)
"""How rarely the garbage collector runs meanwhile: at 4096 in flight it was measured to take half of the time, at 512 a
tenth. Memory stays the same, since requests leave no cycles behind."""


class Prefix(Protocol):
    """Looks at a task while it is asked. `look` says whether its verdict is decided, so that no more is needed;
    `restart` has it look from the beginning again."""

    def look(self) -> bool: ...

    def restart(self) -> None: ...


class Alarm(Protocol):
    """Looks at a task while it is asked, and tells what it sees; `restart` has it look from the beginning again."""

    async def look(self) -> None: ...

    def restart(self) -> None: ...


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
        self.asking: set[asyncio.Task[None]] = set()
        self.refill(positions)

    def refill(self, positions: Sequence[int]) -> None:
        """These samples are to be asked."""
        self.positions, self.begun, self.decided = positions, False, False
        self.left = self.waiting = len(positions)

    def forget(self, responses: Mapping[str, Response]) -> None:
        """Takes these answers back, by the ids of their samples."""
        for i, sample in enumerate(self.tally.samples):
            if (response := responses.get(sample.id)) is not None:
                self.tally.forget(i, response)
        for looking in (self.early, self.alarm):
            if looking is not None:
                looking.restart()

    def missing(self) -> Sequence[int]:
        """The samples that have no result, in the order of their starts, unless the lane is decided without them."""
        if self.early is not None and self.early.look():
            return ()
        score, asked = self.tally.score, set(self.positions)
        rest = (i for i in range(len(self.tally.samples)) if i not in asked)
        return array("q", (i for i in chain(self.positions, rest) if score(i) is None))


class Session:
    """What the engine does between the opening of a client and its closing: the load on the endpoint and on us.
    `at_first` is called when the first result was journalled; `hung` ends the session when a server hangs. `proofs` say
    which connections were in step, and `told` gets a line when one was not."""

    def __init__(
        self,
        client: Client,
        order_seed: int,
        at_first: Callable[[], None] | None = None,
        hung: Hung | None = None,
        proofs: Proofs | None = None,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.client, self._order_seed, self.at_first, self.hung = client, order_seed, at_first, hung
        self.proofs, self._told = proofs or Proofs(), told
        self.withdrawn, self.doubt = 0, asyncio.Event()
        self._unkept: JournalError | None = None
        self._told_of = 0
        if self.proofs.out:
            client.go_alone()
        limits = client.limits
        self.pace = Automatic(limits) if limits.concurrency == "auto" else Fixed(limits.concurrency)
        self.workers = self.finished = 0
        self.lag_s = self.wall_s = 0.0

    def proven(self, connection: int, turns: int) -> None:
        """The client found a connection in step."""
        self._note(Step(self.client.session, connection, turns))

    def out_of_step(self, connection: int, why: str) -> None:
        """The client found a connection out of step."""
        self._note(Step(self.client.session, connection, out=why))
        self.doubt.set()

    def _note(self, step: Step) -> None:
        """Keeps what was found; called by the event loop, where an error would be lost."""
        try:
            self.proofs.note(step)
        except JournalError as error:
            self._unkept = error
            self.doubt.set()

    async def withdraw(self, lanes: Sequence[Lane]) -> None:
        """Takes back what may be the answers to other requests, in the journals and of what is known of the lanes.
        Raises JournalError when that cannot be written."""
        if self._unkept is not None:
            raise self._unkept
        if self.proofs.out:
            self._tell()
            for lane in lanes:
                open_now = {(self.client.session, number) for number in self.client.kept()}
                found = await asyncio.to_thread(list, doubtful(lane.journal.records(), self.proofs, open_now))
                if found:
                    withdraw(lane.journal, found)
                    lane.forget({sample: response for sample, response, _ in found})
                    self.withdrawn += len(found)

    def go_alone(self) -> None:
        """From now on each request has a connection of its own."""
        self.client.go_alone()
        self._tell()

    def _tell(self) -> None:
        """Says once what was found, and once that connections are no longer kept."""
        if not self._told_of:
            why = "a connection gave an answer that nobody had asked for, and so later ones to other requests"
            self._told(f"warning: {why}; those that may be wrong are withdrawn and asked again")
        if self.client.alone and self._told_of < 2:
            self._told("warning: from now on each request has a connection of its own, which cannot get out of step")
        self._told_of = 2 if self.client.alone else 1

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
            met_start=self.client.start.met,
        )


async def ask(
    session: Session, lanes: Iterable[Lane], *, progress: Progress | None = None, watch: Watch | None = None
) -> None:
    """Asks every sample of the lanes, one lane after the other without a pause between them.

    A sample counts as had when its record was written. When a lane is decided, its requests in flight are cancelled,
    and their workers go on with the next lane. Answers of connections that turn out to be out of step are withdrawn and
    asked again, also those that a lane had before. Raises EndpointError when `watch`, the client's liveness or the
    session's `hung` gives the endpoint up, and JournalError when a record cannot be written; requests in flight are
    then cancelled.
    """
    lanes = list(lanes)
    rounds = 0
    async with session.client.keeping(session):
        while any(lane.left for lane in lanes):
            withdrawn = session.withdrawn
            await _ask(session, lanes, progress, watch)
            await session.client.settle()
            await session.withdraw(lanes)
            if session.withdrawn == withdrawn:
                return
            rounds += 1
            if rounds == ROUNDS:
                session.go_alone()
            for lane in lanes:
                lane.refill(lane.missing())
                lane.meet = None  # who asks the same has been met, and is not waiting any more


async def _ask(session: Session, lanes: Sequence[Lane], progress: Progress | None, watch: Watch | None) -> None:
    """Asks what is left of the lanes."""
    busy = [lane for lane in lanes if lane.left]
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
                tally, sample, number = lane.tally, lane.tally.samples[i], None
                lane.asking.add(me)
                try:
                    if lane.meet is not None:
                        await lane.meet(i)
                    number = None if watch is None else watch.start()
                    result = await send.send(client, tally.task, sample)
                except asyncio.CancelledError:
                    if not lane.decided or me.uncancel():
                        raise
                    if watch is not None and number is not None:
                        watch.give_up()
                    continue
                finally:
                    lane.asking.discard(me)
                if isinstance(result, Response):
                    lane.journal.append(Record(id=sample.id, response=result))
                else:
                    lane.journal.append(Record(id=sample.id, failure=result))
                await tally.take_result(i, result)
                if not lane.decided:
                    lane.left -= 1
                session.finished += 1
                if session.finished == 1 and session.at_first is not None:
                    session.at_first()
                if progress is not None and not lane.decided:
                    progress.update(lane.name, tally.scored, tally.failed, tally.running_value)
                    if not lane.left:
                        progress.end(lane.name)
                if lane.early is not None and not lane.decided and lane.early.look():
                    end(lane, me)
                if watch is not None and number is not None:
                    watch.see(number, result)
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
                guards = [client.liveness.watch(), _sync(busy), _measure(session), _watch_course(busy)]
                guards += [_doubt(session, lanes)]
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


async def _doubt(session: Session, lanes: Sequence[Lane]) -> None:
    """Takes answers back as soon as a connection is found out of step; they are asked again at the end."""
    while True:
        await session.doubt.wait()
        session.doubt.clear()
        await session.withdraw(lanes)


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
