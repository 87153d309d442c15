"""Check that each reply on a reused connection belongs to the request before it.

A proxy that answers twice, or sends data unrequested, puts an extra answer before the next one.
HTTP/1.1 has no number that would reveal it, and the connection stays behind from then on. One
request whose reply cannot be an answer (GET /models) proves at any time that all earlier replies
were in step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from serve_eval.client.http1.connection import Http1Connection
from serve_eval.client.step_ledger import RequestIds, StepLedger
from serve_eval.client.transport import BadHttp
from serve_eval.client.wire_format.reply import Reply
from serve_eval.client.wire_format.wire import EVENT_STREAM, UNREADABLE

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
