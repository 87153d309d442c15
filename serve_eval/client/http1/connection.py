"""Serve one request at a time on an HTTP/1.1 connection, and check that replies are in step.

A proxy that answers twice, or sends data unrequested, puts an extra answer before the next one.
HTTP/1.1 has no number that would reveal it, and the connection stays behind from then on. One
request whose reply cannot be an answer (GET /models) proves at any time that all earlier replies
were in step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from serve_eval.client.request import RequestIds
from serve_eval.client.tls import refusal
from serve_eval.client.transport import (
    BadHttp,
    CertificateRefused,
    Disconnected,
    StepLedger,
)
from serve_eval.client.wire_format.refusal import UNREADABLE
from serve_eval.client.wire_format.reply import HEAD_FIELDS, Reply
from serve_eval.client.wire_format.response_head import SERVER_FIELDS
from serve_eval.client.wire_format.wire import EVENT_STREAM

FIRST_CHECK, CHECK_EVERY = 8, 512
"""Answers on a connection before its first check, and before each further one. A check costs as
much as four requests."""
MAX_HEAD = 98304
"""Maximum size of a response head in bytes. The metrics of main need up to 80 KiB."""

_GOODBYE = b"HTTP/1.1 408", b"HTTP/1.0 408"
"""Some proxies send this unrequested before they close an idle connection. It answers nothing."""


class Http1Connection(asyncio.Protocol):
    """One HTTP/1.1 connection.

    A connection on which unrequested data came is closed, because it may be one answer behind. An
    open connection is in `everyone`; a lost one is removed from `idle`.

    `usable`: another request may be sent. `last_id` and `last_text` describe its last answer (see
    `Echoes`). It delivered `turns` answers, of which the first `proven` certainly belong to their
    requests, since `proven_at`. `sent` counts the requests sent. `out`: it is out of step, which
    was reported to `stray`. `closing`: the server announced its end. `cut`: the server ended it. If
    it ends while idle, `ended` receives it. `number` identifies it. `round_trip_s` is the time that
    opening it took.
    """

    __slots__ = (
        "_all",
        "_ended",
        "_head",
        "_head_size",
        "_idle",
        "_informational",
        "_parser",
        "_reply",
        "_stray",
        "_transport",
        "closing",
        "cut",
        "ends_unproven",
        "last_id",
        "last_text",
        "number",
        "out",
        "proven",
        "proven_at",
        "round_trip_s",
        "sent",
        "turns",
        "usable",
        "used_at",
    )

    def __init__(
        self,
        everyone: set[Http1Connection],
        idle: dict[Http1Connection, None],
        number: int = 0,
        stray: Callable[[Http1Connection, str], None] = lambda connection, why: None,
        ended: Callable[[Http1Connection], None] = lambda connection: None,
    ) -> None:
        self._all, self._idle, self.number, self._stray = everyone, idle, number, stray
        self._ended = ended
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._head: dict[bytes, str] = {}
        self._head_size = 0
        self._informational = False
        self.usable, self.used_at, self.round_trip_s = True, 0.0, 0.0
        self.last_id: str | None = None
        self.last_text = self.turns = self.proven = self.sent = 0
        self.out = self.closing = self.cut = self.ends_unproven = False
        self.proven_at = time.monotonic()

    @property
    def unproven(self) -> bool:
        """True if it gave answers that may belong to other requests; its first one cannot."""
        return self.turns > 1 and self.turns > self.proven

    @property
    def due(self) -> bool:
        """True if it gave enough answers to be checked."""
        return self.turns - self.proven >= (CHECK_EVERY if self.proven else FIRST_CHECK)

    def send(self, request: bytes, reply: Reply) -> None:
        """Write a whole request; what comes back goes to `reply`."""
        self._reply = reply
        self.sent += 1
        if self._transport is None or not self.usable:
            reply.fail(Disconnected("the connection was closed before the request was sent"))
        else:
            self._transport.write(request)

    def rest(self, now: float) -> None:
        """Mark the connection as idle: the reply is complete, and nothing is expected."""
        self._reply, self.used_at = None, now

    def abort(self) -> None:
        """End the connection immediately."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._all.add(self)
        if not self.usable:  # data came before any request
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            if self.sent and self.usable and not data.startswith(_GOODBYE):
                self._stray(self, "unrequested bytes came")
            self.abort()
            return
        reply.read_at = time.monotonic()
        reply.received += len(data)
        reply.idle += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._refuse(reply, "the server switches to another protocol")
        except HttpParserError as error:
            self._refuse(reply, str(error))
        if not reply.whole:
            if not reply.status and reply.received > MAX_HEAD:
                self._refuse(reply, f"a head of more than {MAX_HEAD} bytes")
            elif reply.status and reply.idle > MAX_HEAD + len(data):
                self._refuse(reply, f"more than {MAX_HEAD} bytes outside any body")
            elif reply.received > reply.most:
                reply.too_large()
            elif reply.stream is not None:
                reply.hurry()

    def eof_received(self) -> None:
        """Abort the connection: the server sends nothing more."""
        self.cut = self.usable
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.cut = self.cut or self.usable
        self.usable, self._transport = False, None
        self._all.discard(self)
        self._idle.pop(self, None)
        reply, self._reply = self._reply, None
        if reply is None:
            self._ended(self)
        if reply is None or reply.ended.done():
            return
        if error is None and reply.until_close:
            reply.finish()
        elif reply.stream is not None and reply.stream.complete:
            reply.settle()
        else:
            when = "within the answer" if reply.status else "before an answer came"
            why = f" ({type(error).__name__}: {error})" if error is not None else ""
            if told := refusal(error):
                reply.fail(CertificateRefused(told))
            else:
                reply.fail(Disconnected(f"the connection ended {when}{why}"))

    # Called by the parser

    def on_message_begin(self) -> None:
        self._head, self._head_size, self._informational = {}, 0, False
        if self._reply is None or self._reply.whole:
            self._stray(self, "a second message came after a complete answer")
            self.usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        name = name.lower()
        if name in HEAD_FIELDS:
            repeated = name in self._head and name in SERVER_FIELDS
            self._head[name] = "" if repeated else value.decode("latin-1")

    def on_headers_complete(self) -> None:
        reply, head, status = self._reply, self._head, self._parser.get_status_code()
        if reply is None or reply.whole:
            return
        self._informational = 100 <= status < 200
        if status < 100:
            self._refuse(reply, f"the status {status}")
        elif self._head_size > MAX_HEAD:
            self._refuse(reply, f"a head of more than {MAX_HEAD} bytes")
        elif not self._informational:
            reply.begin(status, head)

    def on_body(self, piece: bytes) -> None:
        reply = self._reply
        if reply is not None and not reply.whole and not self._informational:
            reply.take(piece)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None or reply.whole or self._informational:
            return
        if not self._parser.should_keep_alive():
            self.usable, self.closing = False, True
        reply.finish()

    def _refuse(self, reply: Reply, why: str) -> None:
        if reply.whole:
            self._stray(self, "bytes came after a complete answer")
        self.usable = False
        reply.fail(BadHttp(f"no HTTP answer: {why}"))


CHECK_S = 5.0
"""Seconds that a check may take. A connection that is silent for longer proves nothing."""
PARK_S = 2.0
"""Seconds to wait for the answer to a cancelled request, so that its connection can be checked."""
LISTEN_S = 0.5
"""Seconds to wait for an unrequested answer after errors that may answer earlier requests."""
NO_ROUTE = (401, 403, 404, 405)
"""Statuses of a refused path. No completion gets them if others get answers."""
IDLE_S = 1.0
"""Seconds of idleness after which a connection is checked, before its server closes it."""
TRIES = 3
"""This number of error statuses in a row counts as in step: some servers lack the route and answer
it only with errors."""


class StepChecker:
    """Checks connections and records the result in the `ledger`.

    `head` is the start of a request for the models, up to the value of X-Request-ID. `most` is the
    number of requests after which the server closes a connection (0: unknown). `lost` receives a
    connection that a check could not prove and ended.
    """

    def __init__(
        self,
        ledger: StepLedger,
        head: bytes,
        ids: RequestIds,
        limit: int,
        lost: Callable[[Http1Connection], None] = lambda connection: None,
    ) -> None:
        self._ledger, self._head, self._ids, self._limit = ledger, head, ids, limit
        self._lost = lost
        self.most = self._closed_at = 0
        self._checks: set[asyncio.Task[None]] = set()

    def note_closed(self, connection: Http1Connection) -> None:
        """Note that the server announced the end of a connection.

        Two connections that end after the same number of requests reveal the server's limit, and so
        does one that ends even earlier.
        """
        if connection.sent > 1:
            if connection.sent == self._closed_at or connection.sent < self.most:
                self.most = connection.sent
            self._closed_at = connection.sent

    def due(self, connection: Http1Connection) -> bool:
        """Return True if the server is about to close a connection, which is then given up."""
        return connection.sent >= self.most - TRIES

    def check(
        self,
        connection: Http1Connection,
        then: Callable[[Http1Connection], None],
        unwanted: Reply | None = None,
    ) -> None:
        """Check a connection on which nothing is expected except the rest of an `unwanted` reply.

        `then` receives the connection if it is still usable.
        """
        task = asyncio.create_task(self._check(connection, then, unwanted))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def settle(self) -> None:
        """Wait until no check is running, for at most PARK_S and CHECK_S."""
        while self._checks:
            await asyncio.wait(self._checks)

    def close(self) -> None:
        """Cancel all checks."""
        for task in self._checks:
            task.cancel()

    async def _check(
        self,
        connection: Http1Connection,
        then: Callable[[Http1Connection], None],
        unwanted: Reply | None,
    ) -> None:
        in_step = False
        try:
            if unwanted is not None and not await _ends(unwanted):
                self._ledger.trust(connection)
            elif unwanted is None or unwanted.whole:
                async with asyncio.timeout(CHECK_S):
                    in_step = await self._in_step(connection)
        except TimeoutError:
            self._ledger.in_vain += 1
        finally:
            if in_step:
                self._ledger.prove(connection, connection.turns)
                connection.proven_at = time.monotonic()
            if in_step and connection.usable:
                then(connection)
            else:
                connection.abort()
                self._lost(connection)

    async def _in_step(self, connection: Http1Connection) -> bool:
        """Return True if a connection is proven to be in step.

        A list of models that follows errors proves nothing: the request before the last one may
        have asked for it. One more answer then arrives, as it also does if a connection out of step
        gives only errors.
        """
        told, errors, clear = None, 0, True
        while told is None and errors < TRIES:
            request_id = self._ids.new()
            reply = Reply(
                asyncio.get_running_loop().create_future(),
                limit=self._limit,
                now=time.monotonic(),
                raw=True,
            )
            connection.send(b"%b%b\r\n\r\n" % (self._head, request_id.encode()), reply)
            await reply.ended
            if connection.out:
                return False
            told = self._describe(reply, request_id)
            if told is False:
                self._ledger.stray(connection, "a request for the models got another answer")
            if reply.whole:
                connection.rest(time.monotonic())
            self._ledger.shown = self._ledger.shown or told is True
            if told is False or not connection.usable or not reply.whole:
                return bool(told) and not errors
            errors += told is None
            clear = clear and (told is not None or reply.status in NO_ROUTE)
        self._ledger.in_vain += told is None
        if not clear:
            await asyncio.sleep(LISTEN_S)
        return not connection.out and (told is None or not errors)

    def _describe(self, reply: Reply, request_id: str) -> bool | None:
        """Return True if a reply answers a request for the models; None if that is unknown."""
        if reply.error is not None:
            return False if isinstance(reply.error, BadHttp) and not reply.status else None
        if (
            reply.request_id is not None
            and (named := self._ids.find_named(reply.request_id)) is not None
        ):
            return named == request_id
        if reply.status >= 300:
            return None
        if reply.content_type[: len(EVENT_STREAM)].lower() == EVENT_STREAM:
            return False
        try:
            told = msgspec.json.decode(reply.content)
        except UNREADABLE:
            return None
        if not isinstance(told, dict):
            return None
        if told.get("choices"):
            return False
        return True if isinstance(told.get("data", told.get("models")), list) else None


async def _ends(unwanted: Reply) -> bool:
    """Wait for the end of an unwanted reply, and return False if it takes longer than PARK_S."""
    try:
        async with asyncio.timeout(PARK_S):
            await unwanted.ended
    except TimeoutError:
        return False
    return True
