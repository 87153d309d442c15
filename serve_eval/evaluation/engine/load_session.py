"""Track the load on an endpoint while a client is open, and the trust in its connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from serve_eval.client.client import Client
from serve_eval.client.step_ledger import MOST_ENDS, NO_NOTICE, OUT_OF_STEP
from serve_eval.errors import JournalError
from serve_eval.evaluation.endpoint.hang_detector import HangDetector
from serve_eval.evaluation.engine.concurrency import Automatic, Fixed
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.starvation import StarvationWatch
from serve_eval.processes.core_load import CoreLoad
from serve_eval.schema import Load
from serve_eval.storage.records.reply_proofs import TURN, ConnectionStep, Proofs, doubtful, withdraw

UNPROVABLE = "nothing proves that connections are in step, and one ended"


CutOff = list[tuple[Lane, int]]
"""Samples, by lane and position, whose requests were in flight when a session was stopped."""


class LoadSession:
    """Count the work of the engine while a client is open, and withdraw doubtful answers.

    `at_first` is called when the first result is in the journal. `hang_detector` ends the session
    if a server hangs. `proofs` record which connections were in step. `notify` receives a line if
    one was not, or ended before a proof. `cut_off` receives what was in flight at a sudden end.
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
    ) -> None:
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
        self.pace = Automatic(limits) if limits.concurrency == "auto" else Fixed(limits.concurrency)
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
        )
