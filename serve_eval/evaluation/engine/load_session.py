"""Control the number of requests in flight on an endpoint while a client is open.

Pure: callers pass in the times. The automatic number doubles while each doubling adds at least a
fifth to the throughput. If it does not, the number goes back one step, and later tries a quarter
more from time to time. It falls by 30 % after a refusal for load (429, 503), a timeout, answers
that take half of the time limit, or a throughput that fell by 30 %. It is not the default: other
batch sizes change the numerics of a model, so a regression check keeps the number fixed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from serve_eval.client.client import Client
from serve_eval.client.transport import MOST_ENDS, NO_NOTICE, OUT_OF_STEP
from serve_eval.errors import JournalError
from serve_eval.evaluation.engine.budget import RunBudget
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.start_times import MOST_OPEN, Arrivals
from serve_eval.evaluation.hang_detector import HangDetector
from serve_eval.processes.resources import CoreLoad
from serve_eval.schema import ConcurrencyStep, Failure, FailureKind, Limits, Load, Response
from serve_eval.storage.answer_origins import TURN, ConnectionStep, Proofs, doubtful, withdraw

UNPROVABLE = "nothing proves that connections are in step, and one ended"


class CertaintyWatch(Protocol):
    """Look at the lanes that have new results, and end a budget once a FAIL is certain.

    `note` takes a lane with a new result. `watch` runs until it is cancelled.
    """

    def note(self, lane: Lane) -> None: ...

    async def watch(self, budget: RunBudget) -> None: ...


CutOff = list[tuple[Lane, int]]
"""Samples, by lane and position, whose requests were in flight when a session was stopped."""


class LoadSession:
    """Count the work of the engine while a client is open, and withdraw doubtful answers.

    `at_first` is called when the first result is in the journal. `hang_detector` ends the session
    if a server hangs. `proofs` record which connections were in step. `notify` receives a line if
    one was not, or ended before a proof. `cut_off` receives what was in flight at a sudden end. No
    request starts beyond the `budget`, nor after `certainty` ended it.
    """

    def __init__(
        self,
        client: Client,
        order_seed: int,
        at_first: Callable[[], None] | None = None,
        hang_detector: HangDetector | None = None,
        proofs: Proofs | None = None,
        notify: Callable[[str], None] = lambda line: None,
        cut_off: CutOff | None = None,
        budget: RunBudget | None = None,
        certainty: CertaintyWatch | None = None,
    ) -> None:
        self.budget, self.certainty = budget or RunBudget(), certainty
        self.cut_off: CutOff = [] if cut_off is None else cut_off
        self.client, self._order_seed, self.at_first, self.hang_detector = (
            client,
            order_seed,
            at_first,
            hang_detector,
        )
        self.proofs, self._notify = proofs or Proofs(), notify
        self.withdrawn, self.doubt = 0, asyncio.Event()
        self._unkept: JournalError | None = None
        self._told: set[str] = set()
        self._trusted: dict[int, int] = {}
        self._outages, self._lost_before = client.liveness.outages, self.proofs.lost
        if self.proofs.out:
            client.go_alone(OUT_OF_STEP)
        elif self.proofs.silent >= MOST_ENDS:
            client.go_alone(NO_NOTICE)
        limits = client.limits
        self.arrivals: Arrivals | None = None
        self.pace = Automatic(limits) if limits.concurrency == "auto" else Fixed(limits.concurrency)
        if limits.pace == "recorded":
            self.arrivals = Arrivals(time.monotonic)
            asked = 0 if limits.concurrency == "auto" else limits.concurrency
            self.pace = Fixed(max(asked, MOST_OPEN))
        self.workers = self.finished = 0
        self.lag_s = self.wall_s = 0.0
        self._cores = CoreLoad()
        self.starvation = StarvationWatch(time.monotonic, lambda: client.patience.longest_wait_s())

    async def watch_starvation(self) -> None:
        """Warn once if a request waits far longer than others. Runs until it is cancelled."""
        await self.starvation.watch(self._notify)

    def proven(self, connection: int, turns: int) -> None:
        """Record that the client found a connection in step."""
        self._note(ConnectionStep(self.client.session, connection, turns))

    def out_of_step(self, connection: int, why: str) -> None:
        """Record that the client found a connection out of step."""
        self._note(ConnectionStep(self.client.session, connection, out=why))
        self.doubt.set()

    def lose_answers(self, connection: int, why: str, *, silent: bool) -> None:
        """Record that a connection ended before its answers were proven."""
        step = ConnectionStep(self.client.session, connection, lost=why, silent=silent)
        self._note(step)
        if self.client.transport.ledger.unprovable:
            self.client.go_alone(UNPROVABLE)
        self.doubt.set()

    def trust_answers(self, connection: int, turns: int) -> None:
        """Note that unproven answers of a connection stand, unless an outage follows."""
        self._trusted[connection] = turns

    def settle(self) -> None:
        """Record which unproven answers stand. Raises JournalError if that cannot be written."""
        for connection, turns in self._trusted.items():
            self.proofs.note(ConnectionStep(self.client.session, connection, trusted=turns))
        self._trusted.clear()

    def _note(self, step: ConnectionStep) -> None:
        """Record a finding.

        Keep an error for later, since the event loop that calls this would lose it.
        """
        try:
            self.proofs.note(step)
        except JournalError as error:
            self._unkept = error
            self.doubt.set()

    async def withdraw(self, lanes: Sequence[Lane]) -> None:
        """Withdraw answers that may belong to other requests, from the journals and the lanes.

        Raises JournalError if that cannot be written.
        """
        self._distrust_after_outage()
        if self._unkept is not None:
            raise self._unkept
        self._say_why()
        if not (self.proofs.out or self.proofs.lost):
            return
        for lane in lanes:
            open_now = {(self.client.session, number) for number in self.client.list_open()}
            found = await asyncio.to_thread(
                list, doubtful(lane.journal.records(TURN), self.proofs, open_now)
            )
            if found:
                withdraw(lane.journal, found)
                lane.forget({sample: response for sample, response, _ in found})
                self.withdrawn += len(found)

    def _distrust_after_outage(self) -> None:
        """Ask again what was trusted before an outage: its servers may not have been sound."""
        if self.client.liveness.outages > self._outages:
            self._outages = self.client.liveness.outages
            for connection in self._trusted:
                how = "an outage followed"
                self._note(ConnectionStep(self.client.session, connection, lost=how))
            self._trusted.clear()

    def go_alone(self, why: str) -> None:
        """Use a separate connection for each request from now on, for the reason `why`."""
        self.client.go_alone(why)
        self._say_why()

    def _say_why(self) -> None:
        """Report what was found, and that connections are no longer kept, each once."""
        ledger = self.client.transport.ledger
        if self.proofs.out:
            self._tell(
                "warning: a connection returned a response that no request had asked for, which"
                " shifted later responses to other requests; doubtful answers are withdrawn and"
                " asked again"
            )
        if self.proofs.lost > self._lost_before:
            self._tell(
                "connections ended before it was proven that their answers belong to their"
                " requests: these answers are withdrawn and asked again, each on a connection of"
                " its own"
            )
        if ledger.unprovable:
            self._tell(
                f"{self.client.endpoint.base_url} does not list its models, which would prove that"
                " a connection returns each answer to its own request: after an outage each request"
                " uses its own connection"
            )
        if ledger.alone:
            self._tell(
                f"warning: {ledger.why_alone}: from now on each request uses its own connection,"
                " which cannot get out of step"
            )

    def _tell(self, line: str) -> None:
        """Report a line, unless this session did."""
        if line not in self._told:
            self._told.add(line)
            self._notify(line)

    def load(self) -> Load:
        """Return the figures of the session so far."""
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
            outages=self.client.liveness.returns,
            away_s=round(self.client.liveness.away_s, 1),
            cores_busy=None if (busy := self._cores.share()) is None else round(busy, 2),
            ended_by=self.budget.ended_by,
            charged_tokens=round(self.budget.charged),
            lateness=None if self.arrivals is None else self.arrivals.sum_up(),
        )


START, MOST = 16, 1024
DOUBLE, MORE, LESS = 2.0, 1.25, 0.7
RISES = 1.2
"""Factor in throughput that a doubling must reach to be kept. A smaller raise must reach half of
what it adds."""
HOLD_WINDOWS = 8
"""Windows between two trials of a higher number, after climbing ended."""
MAX_STEPS = 1000


def is_overloaded(result: Response | Failure) -> bool:
    """Return True if any attempt was refused for load or timed out."""
    return any(a.status in (429, 503) or a.failure is FailureKind.TIMEOUT for a in result.attempts)


class Fixed:
    """A fixed number of requests in flight, which results do not change."""

    adapts = False
    steps: tuple[ConcurrencyStep, ...] = ()

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def note_result(self, result: Response | Failure, now: float) -> None:
        """Do nothing, since the number is fixed."""


class Automatic:
    """An automatic number of requests in flight, which is `limit`.

    `note_result` takes every result with the time since the start in seconds. The first results
    after a change do not count, because they were sent under the old number.
    """

    adapts = True

    def __init__(self, limits: Limits, most: int = MOST) -> None:
        self._most, self._slow_s = most, limits.stall_timeout_s / 2
        self.limit = min(START, most)
        # The last number that paid off, and its samples per second.
        self._before, self._best = self.limit, 0.0
        self._climbing, self._trial, self._held = True, False, 0
        self._settling, self._began, self._count, self._latency = self.limit, 0.0, 0, 0.0
        self._steps: list[ConcurrencyStep] = []

    @property
    def steps(self) -> tuple[ConcurrencyStep, ...]:
        """Every change, oldest first."""
        return tuple(self._steps)

    def note_result(self, result: Response | Failure, now: float) -> None:
        """Take a result, and change `limit` if necessary."""
        if self._settling > 0:
            self._settling -= 1
            self._began = now
            return
        self._count += 1
        self._latency += result.latency_s if isinstance(result, Response) else 0.0
        if is_overloaded(result):
            self._fall(now, "the endpoint refused the load or timed out")
        elif self._count >= max(self.limit, START):
            self._judge(now)

    def _judge(self, now: float) -> None:
        """Change the number, or keep it, at the end of a window."""
        rate = self._count / max(now - self._began, 1e-6)
        needed = self._best * (RISES if self._climbing else 1.0 + (MORE - 1.0) / 2)
        if self._latency / self._count > self._slow_s:
            self._fall(now, "answers take half of the stall timeout")
        elif (self._climbing or self._trial) and rate < needed:
            self._climbing = self._trial = False
            self._change(self._before, now, "a higher number did not add throughput")
        elif self._climbing or self._trial or self._held >= HOLD_WINDOWS:
            self._before, self._best, self._held = self.limit, rate, 0
            self._trial = not self._climbing
            self._change(
                max(self.limit + 1, self.limit * (DOUBLE if self._climbing else MORE)),
                now,
                "trying a higher number",
            )
        elif rate < LESS * self._best:
            self._fall(now, "throughput fell")
        else:
            self._held += 1
            self._window(now)

    def _fall(self, now: float, why: str) -> None:
        self._climbing = self._trial = False
        self._best, self._held = 0.0, 0
        self._change(self.limit * LESS, now, why)
        self._before = self.limit

    def _change(self, wanted: float, now: float, why: str) -> None:
        limit = max(1, min(self._most, round(wanted)))
        if limit != self.limit and len(self._steps) < MAX_STEPS:
            elapsed, count = max(now - self._began, 1e-6), self._count
            self._steps.append(
                ConcurrencyStep(
                    at_s=round(now, 3),
                    concurrency=limit,
                    samples_per_s=round(count / elapsed, 3),
                    latency_s=round(self._latency / max(count, 1), 6),
                    why=why,
                )
            )
        # Results of this number of requests, sent under the old number, are still to come.
        self._settling = self.limit if limit != self.limit else 0
        self.limit = limit
        self._window(now)

    def _window(self, now: float) -> None:
        self._began, self._count, self._latency = now, 0, 0.0


LOOK_S = 1.0
"""Seconds between two looks."""
TIMES, LEAST_S = 1000.0, 5.0
"""Multiple of the median time, and seconds, that a request must wait."""
LEAST_ANSWERS, KEPT_ANSWERS = 50, 500
"""Answers that the median needs, and the latest ones that it is taken of."""


class StarvationWatch:
    """Compares the longest wait for the first byte of a reply with the median time of samples.

    `waiting_s` returns that wait, which begins when a request is sent: the time before, as in a
    pause that a quota asks for, is not the server's.
    """

    def __init__(self, clock: Callable[[], float], waiting_s: Callable[[], float]) -> None:
        self._clock, self._waiting_s = clock, waiting_s
        self._started: dict[Hashable, float] = {}
        self._times_s: deque[float] = deque(maxlen=KEPT_ANSWERS)

    def begin(self, request: Hashable) -> None:
        """Note that a request starts."""
        self._started[request] = self._clock()

    def end(self, request: Hashable) -> None:
        """Note that a request has ended."""
        self._times_s.append(self._clock() - self._started.pop(request))

    def look(self) -> str | None:
        """Return a warning if a request is starving."""
        if len(self._times_s) < LEAST_ANSWERS:
            return None
        median_s, oldest_s = statistics.median(self._times_s), self._waiting_s()
        if oldest_s < max(LEAST_S, TIMES * median_s):
            return None
        return (
            f"warning: a request has been waiting for {oldest_s:.0f} s, and the median is"
            f" {median_s:.3f} s: the server seems to leave some connections waiting. With"
            " --concurrency auto, as many requests are sent as it answers"
        )

    async def watch(self, notify: Callable[[str], None]) -> None:
        """Warn once. Runs until it is cancelled."""
        warned = False
        while True:
            await asyncio.sleep(LOOK_S)
            if not warned and (told := self.look()) is not None:
                notify(told)
                warned = True
