"""Track the load on an endpoint while a client is open, and the trust in its connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from serve_eval.client.client import Client
from serve_eval.errors import JournalError
from serve_eval.evaluation.endpoint.hang_detector import HangDetector
from serve_eval.evaluation.engine.concurrency import Automatic, Fixed
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.starvation import StarvationWatch
from serve_eval.evaluation.storage.records.reply_proofs import (
    ConnectionStep,
    Proofs,
    doubtful,
    withdraw,
)
from serve_eval.schema import Load


class LoadSession:
    """Count the work of the engine while a client is open, and withdraw doubtful answers.

    `at_first` is called when the first result is in the journal. `hang_detector` ends the session
    if a server hangs. `proofs` record which connections were in step. `notify` receives a line if
    one was not.
    """

    def __init__(
        self,
        client: Client,
        order_seed: int,
        at_first: Callable[[], None] | None = None,
        hang_detector: HangDetector | None = None,
        proofs: Proofs | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.client, self._order_seed, self.at_first, self.hang_detector = (
            client,
            order_seed,
            at_first,
            hang_detector,
        )
        self.proofs, self._notify = proofs or Proofs(), notify
        self.withdrawn, self.doubt = 0, asyncio.Event()
        self._unkept: JournalError | None = None
        self._notices = 0
        if self.proofs.out:
            client.go_alone()
        limits = client.limits
        self.pace = Automatic(limits) if limits.concurrency == "auto" else Fixed(limits.concurrency)
        self.workers = self.finished = 0
        self.lag_s = self.wall_s = 0.0
        self.starvation = StarvationWatch(time.monotonic)

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
        if self._unkept is not None:
            raise self._unkept
        if self.proofs.out:
            self._say_why()
            for lane in lanes:
                open_now = {(self.client.session, number) for number in self.client.list_open()}
                found = await asyncio.to_thread(
                    list, doubtful(lane.journal.records(), self.proofs, open_now)
                )
                if found:
                    withdraw(lane.journal, found)
                    lane.forget({sample: response for sample, response, _ in found})
                    self.withdrawn += len(found)

    def go_alone(self) -> None:
        """Use a separate connection for each request from now on."""
        self.client.go_alone()
        self._say_why()

    def _say_why(self) -> None:
        """Report once what was found, and once that connections are no longer kept."""
        if not self._notices:
            why = (
                "a connection returned a response that no request had asked for, which shifted"
                " later responses to other requests"
            )
            self._notify(f"warning: {why}; doubtful answers are withdrawn and asked again")
        if self.client.alone and self._notices < 2:
            self._notify(
                "warning: from now on each request uses its own connection, which cannot get out of"
                " step"
            )
        self._notices = 2 if self.client.alone else 1

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
        )
