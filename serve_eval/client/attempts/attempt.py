"""Make one attempt at a request: send it, wait, judge the answer and record it."""

from __future__ import annotations

import asyncio
import time

from msgspec import UNSET

from serve_eval.client.attempts.liveness import LivenessGuard
from serve_eval.client.attempts.outcome import Missed, OutcomeReader
from serve_eval.client.attempts.timing import STALL, Patience, Quota, StartRate, Wait
from serve_eval.client.request import RequestIds
from serve_eval.client.transport import (
    BadHttp,
    CannotConnect,
    Channel,
    Disconnected,
    ProxyRefused,
    RequestHead,
    Transport,
)
from serve_eval.client.wire_format.bodies import Said, microseconds, response
from serve_eval.client.wire_format.reply import Reply
from serve_eval.masking import Masking
from serve_eval.schema import Attempt, FailureKind, Limits, LostAnswer, Request, Response, Route

LEAST_ROUND_TRIP_S = 0.02
"""Shortest time that counts as a round trip: our event loop may be late by as much."""
REPORTED_PAUSE_S = 5.0
"""Shortest pause asked for by a server that is worth a line."""
NOT_SENT = (CannotConnect, ProxyRefused, BadHttp, Disconnected)
"""Errors by which a transport reports that a request was never sent."""


class AttemptUnderWay:
    """The state of one attempt.

    `channel` is None until the request is sent. `alone`: its connection serves no other request.
    `early`: it ended before anything can have been generated for it, or its answer is asked for
    again because the connection was out of step.
    """

    __slots__ = (
        "alone",
        "channel",
        "early",
        "end",
        "failure",
        "named",
        "reply",
        "request_id",
        "start",
        "status",
        "streamed",
        "unwanted",
        "used",
    )

    def __init__(
        self, request_id: str, reply: Reply, start: float, *, streamed: bool, alone: bool
    ) -> None:
        self.request_id, self.reply, self.start = request_id, reply, start
        self.streamed, self.alone = streamed, alone
        self.channel: Channel | None = None
        self.failure: FailureKind | None = (
            FailureKind.TIMEOUT
        )  # the outcome if the sample's time limit ends the attempt
        self.status: int | None = None
        self.end = 0.0
        self.used = self.named = self.unwanted = self.early = False


class Echoes:
    """Detects repeated answers by their ids, unless the server gives every answer the same id.

    A proxy that answers twice puts the second answer before the reply to the next request on that
    connection. From then on every sample would be scored with another sample's answer. HTTP/1.1
    does not reveal it, but the ids of the answers do.
    """

    def __init__(self) -> None:
        self._newest: tuple[str, Channel] | None = None
        self._ids_tell = True

    def is_echo(self, channel: Channel, said: Said) -> bool:
        """Return True if a connection repeated its last answer: same id, text and tool calls."""
        if said.id is None or not self._ids_tell:
            return False
        text = hash((said.text, said.tool_calls))
        if said.id == channel.last_id and text == channel.last_text:
            self._newest = said.id, channel
            return True
        elsewhere = (
            self._newest is not None
            and self._newest[0] == said.id
            and self._newest[1] is not channel
        )
        if elsewhere or said.id == channel.last_id:
            self._ids_tell = False
        self._newest, channel.last_id, channel.last_text = (said.id, channel), said.id, text
        return False


class AttemptSender:
    """Makes attempts through a transport.

    `answered` counts the attempts that were answered, `cancelled` the requests that were sent and
    then cancelled by their senders.
    `saw_servers`: a reply named the servers that took part in it.
    """

    def __init__(
        self,
        transport: Transport,
        limits: Limits,
        *,
        url: str,
        ids: RequestIds,
        masking: Masking,
        reader: OutcomeReader,
        liveness: LivenessGuard,
        wants_timing: bool,
    ) -> None:
        self._transport, self._limits, self._ids, self._masking = transport, limits, ids, masking
        self._reader, self._liveness, self._wants_timing = reader, liveness, wants_timing
        self._mask = masking.body if masking else None
        self._rate = StartRate(limits.rate_limit) if limits.rate_limit else None
        self._quota = Quota(url, limits.requests_per_minute)
        self._echoes = Echoes()
        self._in_flight = self.max_in_flight = self.cancelled = self.answered = 0
        self.saw_servers = False
        self._epoch = time.time() - time.monotonic()

    @property
    def sent(self) -> int:
        """The number of requests that were sent, at most: some may not have left."""
        return self._ids.made

    @property
    def in_flight(self) -> int:
        """The number of requests that are under way."""
        return self._in_flight

    def open(self, patience: Patience) -> None:
        """Begin the session on the running event loop."""
        self._patience, self._loop = patience, asyncio.get_running_loop()

    def now(self) -> float:
        """Return the time of the attempts' clock: UTC seconds since 1970 that never jump."""
        return self._epoch + time.monotonic()

    async def attempt(
        self,
        request: Request,
        head: RequestHead,
        body: bytes,
        wait: Wait,
        attempts: list[Attempt],
        *,
        stream: bool,
        fresh: bool,
        alone: bool,
        route: Route = Route.CHAT,
    ) -> Response:
        """Send the request once and return the answer. Raises Missed.

        `attempts` grows by one in both cases. `fresh`: on a new connection, which `alone` ends
        after it. `route` says how the answer is read.
        """
        if self._rate is not None or not self._quota.open:
            with wait.pause():
                await self._quota.wait()
                if self._rate is not None:
                    await self._rate.wait()
        start = time.monotonic()
        reply = Reply(
            self._loop.create_future(),
            limit=self._limits.max_response_bytes,
            now=start,
            mask=self._mask,
            metrics=self._wants_timing,
            route=route,
        )
        this = AttemptUnderWay(self._ids.new(), reply, start, streamed=stream, alone=alone)
        self._in_flight += 1
        if self._in_flight > self.max_in_flight:
            self.max_in_flight = self._in_flight
        try:
            name = this.request_id
            idle = None if fresh or alone else self._transport.send_on_idle(head, body, reply, name)
            channel = idle or await self._transport.send(
                head, body, reply, request_id=name, fresh=True
            )
            del body  # it may hold a video; the answer is awaited without it
            this.channel, this.used = channel, channel.turns > 0
            self._patience.expect(wait, reply)
            await reply.ended
            said = self._judge(this, channel, request)
            this.failure, self._liveness.spent_s = None, 0.0
            self.answered += 1
        except asyncio.CancelledError:
            if not wait.cut_off(STALL):
                this.unwanted = this.channel is not None and wait.over is None
                self.cancelled += this.unwanted
                raise
            message = f"no data for {self._limits.stall_timeout_s:g} s"
            raise Missed(FailureKind.TIMEOUT, message, status=reply.status or None) from None
        except Missed as missed:
            self._note(this, missed)
            raise
        except (TimeoutError, *NOT_SENT) as error:
            unsent = (
                self._reader.not_connected()
                if isinstance(error, TimeoutError)
                else self._reader.of_error(error)
            )
            self._note(this, unsent)
            raise unsent from error
        finally:
            self._end(this, wait, attempts)
        streamed = reply.stream
        return response(
            request,
            said,
            start=start,
            end=this.end,
            first_at=None if streamed is None else streamed.first_at,
            last_at=None if streamed is None else streamed.last_at,
            attempts=tuple(attempts),
        )

    def _pause(self, seconds: float) -> None:
        """Let no attempt start for the time that the server asks for, and report a long one."""
        if seconds >= REPORTED_PAUSE_S and self._quota.open:
            self._liveness.notify(
                f"the endpoint's quota is spent: no request starts for {seconds:.0f} s"
            )
        self._quota.pause(seconds)

    def _judge(self, this: AttemptUnderWay, channel: Channel, request: Request) -> Said:
        """Return the answer, unless it belongs to another request. Raises Missed."""
        reply, ids, ledger = this.reply, self._ids, self._transport.ledger
        if channel.out and this.used:
            why = "its connection delivered more answers than requests"
            raise _miss_own_answer(reply, why, stale=True)
        said = self._reader.read_answer(reply, request)
        named = None if reply.request_id is None else ids.find_named(reply.request_id)
        if named is None and said.id is not None and ids.own in said.id:
            named = ids.find_named(said.id)
        if named is not None and named != this.request_id:
            ledger.stray(channel, "an answer named another of our requests")
            why = f"the answer to another request: it names {named}"
            raise _miss_own_answer(reply, why, stale=this.used)
        if self._echoes.is_echo(channel, said):
            why = "the connection repeated the answer to an earlier request"
            raise _miss_own_answer(reply, why)
        if named is not None:
            this.named = True
            ledger.prove_next(channel)
        return said

    def _note(self, this: AttemptUnderWay, missed: Missed) -> None:
        """Record why an attempt has no answer.

        Blames the connection if it was used before and ended without any data.
        """
        this.failure = missed.kind
        this.status = missed.status = missed.status or this.reply.status or None
        this.early = missed.refused_early or missed.stale
        silent = this.channel is not None and this.used and not this.reply.received
        if silent and this.channel is not None and missed.kind is FailureKind.DISCONNECTED:
            now, channel = time.monotonic(), this.channel
            missed.stale = True
            # Once three connections ended this way, no request shares a connection any more.
            this.early = now - this.start <= max(channel.round_trip_s, LEAST_ROUND_TRIP_S)
            self._transport.note_end(channel, now)

    def _end(self, this: AttemptUnderWay, wait: Wait, attempts: list[Attempt]) -> None:
        """Give the connection back and write the record."""
        reply, channel = this.reply, this.channel
        this.end = time.monotonic()
        self._patience.expect_no_more(wait, this.end)
        self._in_flight -= 1
        if reply.pause_s is not None:
            self._pause(reply.pause_s)
        connection = turn = 0
        if channel is not None and this.failure is None and this.used and not this.named:
            # It needs a proof: its connection was used before, and it did not name its request.
            connection, turn = channel.number, channel.turns + 1
        servers, timing = reply.servers, reply.timing if self._wants_timing else None
        if servers is not None:
            self.saw_servers = True
            servers = self._masking.value(servers) if self._masking else servers
        if timing is not None and self._masking:
            timing = self._masking.value(timing)
        attempts.append(
            Attempt(
                start_s=microseconds(self._epoch + this.start),
                end_s=microseconds(self._epoch + this.end),
                failure=this.failure,
                status=this.status or reply.status or None,
                request_id=this.request_id,
                streamed=this.streamed,
                connection=connection,
                turn=turn,
                timing=timing,
                servers=servers,
                lost=UNSET if this.failure is None else _judge_loss(this),
            )
        )
        if channel is None:
            return
        if this.alone:
            self._transport.abort(channel)
            return
        if this.failure is None and reply.whole:
            self._transport.keep(channel, this.end)
            return
        if this.failure is not None:
            # The answer may still arrive on the connection after an error.
            reply.settle()
        self._transport.give_up(channel, reply, unwanted=this.unwanted)


def _judge_loss(this: AttemptUnderWay) -> LostAnswer:
    """Return whether an attempt that gave no answer may have lost one."""
    nothing = this.channel is None or this.early
    return LostAnswer.NOTHING if nothing else LostAnswer.ANSWER


def _miss_own_answer(reply: Reply, why: str, *, stale: bool = False) -> Missed:
    """Return the outcome of an attempt whose reply, and its servers, are those of another."""
    reply.servers = None
    return Missed(FailureKind.INVALID_RESPONSE, why, stale=stale)
