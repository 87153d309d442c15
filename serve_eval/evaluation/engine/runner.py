"""Ask tasks with one client and one stream of samples, until a circuit breaker stops it.

Samples are counted in the order of their starts. Refusals come back immediately and answers take
time, so the first results of a healthy endpoint may all be failures.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence

from serve_eval.errors import EndpointError, ServerEndedError
from serve_eval.evaluation.engine import send
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LoadSession
from serve_eval.processes.rare_collections import rare_collections
from serve_eval.schema import Failure, FailureKind, Progress, Response, Sample

SHOWN_EVERY_S = 0.05
"""Seconds between two updates of the progress."""
ROUNDS = 2
"""Number of rounds with withdrawn answers after which each request has its own connection.
Otherwise, connections that end without a proof would lose their answers in every round."""


async def ask(
    session: LoadSession,
    lanes: Iterable[Lane],
    *,
    progress: Progress | None = None,
    watch: CircuitBreaker | None = None,
) -> None:
    """Ask every sample of the lanes, one lane after another without a pause between them.

    A sample is finished when its record is written. When a lane is decided, its requests in flight
    are cancelled, and their workers continue with the next lane. Answers of connections that turn
    out to be out of step, including those of earlier sessions, are withdrawn and asked again. So
    are answers that nothing will prove, since their connections ended. When the session's budget is
    spent, no request starts, and those in flight are awaited. Raises EndpointError if
    `watch`, the client's liveness check or the hang detector of the session gives up the endpoint,
    and JournalError if a record cannot be written. Requests in flight are then cancelled.
    """
    lanes = list(lanes)
    for lane in lanes:
        lane.proofs = session.proofs
    rounds = 0
    async with session.client.keep_connections(session):
        while any(lane.left for lane in lanes):
            withdrawn = session.withdrawn
            await _Round(session, lanes, progress, watch).run()
            await session.client.settle()
            await session.withdraw(lanes)
            if session.withdrawn == withdrawn:
                break
            rounds += 1
            if rounds == ROUNDS:
                session.go_alone("answers were withdrawn twice")
            for lane in lanes:
                lane.refill(lane.list_missing())
                lane.meet = None  # the other run has met these samples and no longer waits
        session.settle()


class _Round:
    """One pass over the samples left in the lanes.

    Its workers draw samples from one stream, so that the end of a lane and the start of the next
    one overlap.
    """

    def __init__(
        self,
        session: LoadSession,
        lanes: Sequence[Lane],
        progress: Progress | None,
        watch: CircuitBreaker | None,
    ) -> None:
        self._session, self._lanes, self._progress, self._watch = session, lanes, progress, watch
        self._client, self._pace = session.client, session.pace
        self._busy = [lane for lane in lanes if lane.left]
        self._left = sum(lane.left for lane in self._busy)
        self._stream = ((lane, i) for lane in self._busy for i in lane.iterate_starts(progress))
        self._held: tuple[Lane, int, Sample] | None = None
        self._idle = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._offset = session.wall_s - self._clock()

    async def run(self) -> None:
        """Ask until no worker has anything left to do.

        Raises the error that ended a worker or the upkeep.
        """
        try:
            with rare_collections():
                async with asyncio.TaskGroup() as self._group:
                    self._start_workers()
                    company = [
                        self._group.create_task(one)
                        for one in (
                            *upkeep(self._session, self._busy, self._lanes),
                            self._show_progress(),
                        )
                    ]
                    await self._idle.wait()
                    for task in company:
                        task.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._session.wall_s = self._clock() + self._offset
            self._end_progress()

    def _start_workers(self) -> None:
        """Start as many workers as the pace allows and the remaining samples need."""
        for _ in range(min(self._pace.limit - self._session.workers, self._left)):
            self._session.workers += 1
            self._group.create_task(self._work())

    async def _work(self) -> None:
        """Ask one sample after another, until none is left or the pace allows fewer workers."""
        session, pace = self._session, self._pace
        me = asyncio.current_task()
        assert me is not None
        try:
            while session.workers <= pace.limit and (drawn := self._draw()) is not None:
                await self._ask_sample(*drawn, me)
        finally:
            session.workers -= 1
            if not session.workers:
                self._idle.set()

    def _draw(self) -> tuple[Lane, int, Sample] | None:
        """Return the next sample; None if there is none, or if the budget has no room for it now.

        The sample is held until an answer in flight makes room.
        """
        held = self._held
        if held is None or held[0].decided:
            self._held = None
            if (drawn := next(self._stream, None)) is None:
                return None
            lane, i = drawn
            # Looked up once: some tasks make their samples.
            held = self._held = lane, i, lane.accumulator.samples[i]
        if not self._session.budget.admits(held[0].accumulator.task, held[2]):
            return None
        self._held = None
        return held

    async def _ask_sample(self, lane: Lane, i: int, sample: Sample, me: asyncio.Task[None]) -> None:
        """Send one sample and take its result, unless its lane is decided first."""
        self._left -= 1
        lane.waiting -= 1
        accumulator, watch, number = lane.accumulator, self._watch, None
        session, pace = self._session, self._pace
        lane.asking.add(me)
        try:
            await self._await_turn(lane, i, sample)
            number = None if watch is None else watch.start()
            session.starvation.begin(me)
            try:
                result = await send.send(
                    self._client,
                    accumulator.task,
                    sample,
                    alone=i in lane.alone,
                    lane=lane,
                )
            finally:
                session.starvation.end(me)
        except asyncio.CancelledError:
            if not lane.decided or me.uncancel():
                session.cut_off.append((lane, i))
                raise
            session.budget.settle(accumulator.task, sample, None)
            if watch is not None and number is not None:
                watch.give_up()
            return
        except ServerEndedError:
            session.cut_off.append((lane, i))
            raise
        finally:
            lane.asking.discard(me)
        session.budget.settle(accumulator.task, sample, result)
        lane.keep(sample, result)
        if accumulator.scores_here:
            accumulator.add(i, result, None, sample)
        else:
            await accumulator.take_result(i, result, sample)
        self._count(lane, me)
        if watch is not None and number is not None:
            watch.see(number, result)
        if pace.adapts:
            pace.note_result(result, self._clock() + self._offset)
        if session.workers < pace.limit:
            self._start_workers()

    async def _await_turn(self, lane: Lane, i: int, sample: Sample) -> None:
        """Return when a sample may be sent: with that of another run, or at its recorded time."""
        if lane.meet is not None:
            await lane.meet(i)
        if self._session.arrivals is not None:
            await self._session.arrivals.wait(sample)

    def _count(self, lane: Lane, me: asyncio.Task[None]) -> None:
        """Count a result, and end the lane if the result decides it or is its last."""
        session = self._session
        if not lane.decided:
            lane.left -= 1
        session.finished += 1
        if session.finished == 1 and session.at_first is not None:
            session.at_first()
        if lane.decided:
            return
        if not lane.left:
            lane.end_progress(self._progress)
        if lane.early is not None and lane.early.look():
            self._end(lane, me)
        if session.certainty is not None:
            session.certainty.note(lane)

    def _end(self, lane: Lane, me: asyncio.Task[None]) -> None:
        """Ask nothing more of a decided lane, and cancel its requests in flight."""
        self._left -= lane.waiting
        lane.waiting, lane.decided = 0, True
        for other in lane.asking - {me}:
            other.cancel()
        if lane.left:
            lane.end_progress(self._progress)
        lane.left = 0

    async def _show_progress(self) -> None:
        """Show the lanes in progress that have new results, until it is cancelled."""
        shown: dict[Lane, int] = {}
        while self._progress is not None:
            await asyncio.sleep(SHOWN_EVERY_S)
            for lane in self._busy:
                if lane.begun and lane.left not in (0, shown.get(lane)):
                    shown[lane] = lane.left
                    lane.show(self._progress)

    def _end_progress(self) -> None:
        """End the progress of lanes that are unfinished."""
        for lane in self._busy:
            if lane.begun and lane.left:
                lane.end_progress(self._progress)


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
    if session.certainty is not None:
        guards.append(session.certainty.watch(session.budget))
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


DEAD_AFTER = 16
"""Number of samples started in a row that must fail the same way before the endpoint is given up.
They must be the first samples of the run, or fail in a LASTING way."""
REFUSED_AFTER = 50
"""The same number for the first samples of a run if each is refused with a status in PROMPTS."""
PROMPTS = (400, 413, 422)
"""Statuses that concern a single prompt, such as one that is too long, rather than the endpoint. A
500 that quotes one of them counts as well."""
RATE_AFTER = 50
"""Number of samples from which the error rate is checked."""
CHANCE = 3.0
"""Number of standard errors by which failures among the first samples may exceed the rate, since
early failures come in clusters."""
LASTING = (FailureKind.DISCONNECTED, FailureKind.TIMEOUT)


class CircuitBreaker:
    """Follow the start and the result of every sample of a session.

    `answered` is the number of answers from earlier sessions. The error rate is that of the whole
    run, since a resumed run asks the failed samples first. `planned` is the number of all samples
    of the run, if known.
    """

    def __init__(
        self, *, answered: int, planned: int | None = None, max_error_rate: float = 0.10
    ) -> None:
        self._answered, self._max_error_rate = answered > 0, max_error_rate
        self._planned = math.inf if planned is None else planned
        self._begun, self._of_the_run, self._failed = 0, answered, 0
        self._kinds: dict[int, tuple[str, int]] = {}
        self._messages: dict[tuple[str, int], str] = {}

    def start(self) -> int:
        """Return the number, from 0, of a sample that is sent now."""
        self._begun, self._of_the_run = self._begun + 1, self._of_the_run + 1
        return self._begun - 1

    def give_up(self) -> None:
        """Remove a started sample that was given up and will have no result."""
        self._of_the_run -= 1

    def see(self, number: int, result: Response | Failure) -> None:
        """Take the result of the sample with the number that `start` returned.

        Raises EndpointError in two cases. The first is DEAD_AFTER equal failures of samples started
        in a row: of any kind for the first samples of a run, else only lost connections and
        timeouts. Refusals of single prompts need REFUSED_AFTER. The second is that more than
        `max_error_rate` of at least RATE_AFTER samples failed. The share is either that of the
        started samples, where those in flight count as answered and CHANCE is allowed for, or that
        of all planned samples.
        """
        if isinstance(result, Response):
            self._answered = True
            return
        self._failed += 1
        kind = self._kinds[number] = (result.kind.value, result.status or 0)
        self._messages[kind] = result.message
        self._check_row(number, result)
        self._check_rate()

    def _check_row(self, number: int, failure: Failure) -> None:
        kinds, kind = self._kinds, self._kinds[number]
        wrapped = (
            kind[1] == 500 and not failure.retryable
        )  # an orchestrator of the 1.2 versions quotes a worker's 400
        needed = REFUSED_AFTER if kind[1] in PROMPTS or wrapped else DEAD_AFTER
        first = last = number
        while last - first < needed and kinds.get(first - 1) == kind:
            first -= 1
        while last - first < needed and kinds.get(last + 1) == kind:
            last += 1
        row = last - first + 1
        if row >= needed and (failure.kind in LASTING or (first == 0 and not self._answered)):
            raise EndpointError(
                "the endpoint"
                f" {'stopped answering' if self._answered else 'refuses every request'}: {row}"
                f" samples in a row failed, the last with: {failure.message}",
                hint=_hint(kind[1]),
            )

    def _check_rate(self) -> None:
        rate, started, failed = self._max_error_rate, self._of_the_run, self._failed
        surely = rate * started + CHANCE * math.sqrt(rate * (1.0 - rate) * started)
        of_started = started >= RATE_AFTER and failed > surely
        of_planned = self._planned >= RATE_AFTER and failed / self._planned > rate
        if not (of_started or of_planned):
            return
        cause, count = Counter(self._kinds.values()).most_common(1)[0]
        raise EndpointError(
            f"{failed} of {started} samples failed, more than the allowed {rate:.0%};"
            f" {count} of them with: {self._messages[cause]}",
            hint=f"{_hint(cause[1])} --set limits.max_error_rate=SHARE allows more.",
        )


def _hint(status: int) -> str:
    if status in (429, 503):
        return (
            "The endpoint refuses the load. Resume with --concurrency auto, a lower --concurrency,"
            " or --set limits.rate_limit=R."
        )
    return "Fix the cause, then resume the run."
