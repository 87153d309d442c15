"""Manage connections to one endpoint: open them on demand, reuse them, never share one.

Written here because of measurements (repeat them with `make bench`): bare aiohttp takes more than
twice the CPU time per request, and a third more per event of a stream.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

from serve_eval.client.http1.connection import IDLE_S, Http1Connection, StepChecker
from serve_eval.client.http1.dialer import Dialer
from serve_eval.client.tls import ServerAddress, endpoint_address, proxy_address
from serve_eval.client.transport import (
    REQUEST_ID,
    CannotConnect,
    Channel,
    RequestHead,
    StepLedger,
    TransportSettings,
)
from serve_eval.client.wire_format.reply import Reply
from serve_eval.schema.base_url import on_the_wire

KEEPALIVE_S = 3.0
"""Less than the 5 s after which trtllm-serve closes an idle connection: a POST on a closing
connection is lost."""
LEAST_IDLE_S = 0.05
"""Least idleness after which connections are checked, if their server ends idle ones early."""
HASTY, HASTY_S = 3, 0.5
"""A server that closes HASTY connections in a row, each within HASTY_S seconds of its answer,
always does so. llama-server does after streams, without announcing it, and every next request would
be lost."""
TIMED_S, TIMED_GAP_S = 30.0, 1.0
"""A connection is also checked this long after its last proof, one connection per gap. A crash then
costs few answers, even if they take minutes."""
TURNS_TO_CLOSE = 10
"""Turns of the event loop that aborted connections may take to close."""


class Http1Transport:
    """Our own connections, each with one request at a time.

    A proxy gets whole URLs for http and a CONNECT for https. Raises PlanError for a base URL
    without a host, for an invalid proxy (without quoting its address), and for an unusable bundle
    of certificates.
    """

    def __init__(self, settings: TransportSettings) -> None:
        self._target, self.proxy = (
            endpoint_address(settings.base_url),
            proxy_address(settings.proxy),
        )
        self._closed, self._hasty, self._opened = False, 0, 0
        self._timed_at, self._idle_s = 0.0, IDLE_S
        self._idle: dict[Http1Connection, None] = {}
        self.connections: set[Http1Connection] = set()
        self._dialer = Dialer(
            self._target,
            self.proxy,
            certificates=settings.certificates,
            timeout_s=settings.connect_timeout_s,
            new_connection=self._new_connection,
            lost=self.connections.discard,
        )
        self.ledger = StepLedger()
        self._prepared: dict[RequestHead, bytes] = {}
        models = self._encode(RequestHead("GET", settings.models_path, settings.headers))
        self.steps = StepChecker(
            self.ledger,
            models + _ID_FIELD,
            settings.ids,
            settings.max_response_bytes,
            self._note_idle_end,
        )

    @property
    def address(self) -> ServerAddress:
        return self._dialer.first

    # Before every request

    def prepare(self, head: RequestHead) -> None:
        self._prepared[head] = self._encode(head)

    def send_on_idle(
        self, head: RequestHead, body: bytes | None, reply: Reply, request_id: str
    ) -> Http1Connection | None:
        connection = self._take_idle()
        if connection is not None:
            connection.send(self._whole(head, body, request_id), reply)
        return connection

    async def send(
        self,
        head: RequestHead,
        body: bytes | None,
        reply: Reply,
        *,
        request_id: str | None = None,
        fresh: bool = False,
    ) -> Http1Connection:
        connection = None if fresh else self._take_idle()
        if connection is None:
            connection = await self._open()
            reply.expect(time.monotonic())
        connection.send(self._whole(head, body, request_id), reply)
        return connection

    def _whole(self, head: RequestHead, body: bytes | None, request_id: str | None) -> bytes:
        """Return a request as it is written."""
        lines = self._prepared.get(head) or self._encode(head)
        named = b"" if request_id is None else b"%b%b\r\n" % (_ID_FIELD, request_id.encode())
        if body is None:
            return b"%b%b\r\n" % (lines, named)
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (lines, named, len(body), body)

    def _encode(self, head: RequestHead) -> bytes:
        """Return the request line and headers of a request for a path of the target."""
        target, absolute = self._target, self.proxy is not None and not self._target.tls
        place = on_the_wire(head.path)
        if absolute:
            place = f"http://{target.authority}{place}"
        own = {} if "host" in map(str.lower, head.headers) else {"Host": target.authority}
        lines = {**own, **head.headers}
        if absolute and self.proxy is not None:
            lines.update(self.proxy.credentials)
        return "".join(
            [
                f"{head.method} {place} HTTP/1.1\r\n",
                *(f"{name}: {value}\r\n" for name, value in lines.items()),
            ]
        ).encode("latin-1")

    def _take_idle(self) -> Http1Connection | None:
        """Return the most recently used idle connection that is usable, or None."""
        if not self.ledger.keeps:
            self._retire_all()
            return None
        while self._idle:
            connection, _ = self._idle.popitem()
            if time.monotonic() - connection.used_at > KEEPALIVE_S:
                self._retire(connection)
                self._retire_all()
            elif connection.usable:
                return connection
        return None

    async def _open(self) -> Http1Connection:
        if self._closed:
            raise CannotConnect(
                self.address, ConnectionAbortedError("the client was closed"), may_pass=False
            )
        return await self._dialer.dial()

    def _new_connection(self) -> Http1Connection:
        self._opened += 1
        return Http1Connection(
            self.connections, self._idle, self._opened, self.ledger.stray, self._note_idle_end
        )

    # After every request

    def keep(self, channel: Channel, now: float) -> None:
        """Take a connection back, unless its server closes connections without notice."""
        connection = cast("Http1Connection", channel)
        if connection.turns:
            self._hasty = 0
        connection.turns += 1
        if connection.usable and self.ledger.keeps and not self._closed and self._hasty < HASTY:
            connection.rest(now)
            if self.steps.most and self.steps.due(connection):
                self._retire(connection)
            elif connection.due or (
                now > connection.proven_at + TIMED_S and self._is_time(connection, now)
            ):
                self.steps.check(connection, self._free)
            else:
                self._idle[connection] = None
            return
        if connection.closing:
            self.steps.note_closed(connection)
        self._retire(connection)

    def give_up(self, channel: Channel, reply: Reply, *, unwanted: bool = False) -> None:
        connection = cast("Http1Connection", channel)
        if reply.whole or unwanted:
            self._retire(connection, None if reply.whole else reply)
        else:
            connection.abort()
            self._settle_end(connection, busy=True)

    def abort(self, channel: Channel) -> None:
        cast("Http1Connection", channel).abort()

    def note_end(self, channel: Channel, now: float) -> None:
        self._hasty += now - cast("Http1Connection", channel).used_at < HASTY_S

    def _retire(self, connection: Http1Connection, unwanted: Reply | None = None) -> None:
        """Give a connection up, after a last check if its answers need one.

        Waits for the rest of an `unwanted` reply.
        """
        if (
            connection.usable
            and connection.unproven
            and not self._closed
            and self.ledger.listener is not None
        ):
            if unwanted is None:
                connection.rest(time.monotonic())
            else:
                unwanted.discard(asyncio.get_running_loop().create_future())
            self.steps.check(connection, Http1Connection.abort, unwanted)
        else:
            connection.abort()
            self._settle_end(connection, busy=True)

    def _retire_all(self) -> None:
        while self._idle:
            self._retire(self._idle.popitem()[0])

    def _is_time(self, connection: Http1Connection, now: float) -> bool:
        """Return True if an unproven connection may be checked by time, as none was just now."""
        if not connection.unproven or now < self._timed_at + TIMED_GAP_S:
            return False
        self._timed_at = now
        return True

    # After the end of a connection

    def _note_idle_end(self, connection: Http1Connection) -> None:
        """Take a connection that ended while it was idle or checked.

        A server that ends idle connections before they are checked is checked earlier from then on.
        """
        idle_s = time.monotonic() - connection.used_at
        if connection.cut and connection.unproven and idle_s >= HASTY_S:
            self._idle_s = max(LEAST_IDLE_S, min(self._idle_s, idle_s / 4))
        self._settle_end(connection, busy=idle_s < HASTY_S)

    def _settle_end(self, connection: Http1Connection, *, busy: bool) -> None:
        """Report the answers of an ended connection that no proof will cover any more.

        `busy`: it was in use. An announced end is sound, but proves nothing about a connection that
        was never checked. A server that ends idle connections is sound too.
        """
        if not connection.unproven or self._closed:
            return
        if connection.closing and connection.proven:
            self.ledger.trust(connection)
            return
        silent = connection.cut and busy and not connection.closing
        how = "its server ended it" if connection.cut or connection.closing else "it was given up"
        self.ledger.lose(connection, how, silent=silent)

    # The whole session

    def list_open(self) -> frozenset[int]:
        return frozenset(connection.number for connection in self.connections if connection.usable)

    async def settle(self) -> None:
        """Check idle connections and wait for all checks. Connections in use stay unproven."""
        self._check_idle(0.0)
        await self.steps.settle()

    async def watch(self) -> None:
        """Check idle connections until cancelled, before the server closes them."""
        while True:
            await asyncio.sleep(self._idle_s)
            self._check_idle(self._idle_s)

    async def close(self) -> None:
        self._closed = True
        self.steps.close()
        for connection in tuple(self.connections):
            connection.abort()
        for _ in range(TURNS_TO_CLOSE):
            if self.connections:
                await asyncio.sleep(0)

    def _check_idle(self, idle_s: float) -> None:
        now = time.monotonic()
        for connection in [
            one for one in self._idle if one.unproven and now - one.used_at >= idle_s
        ]:
            del self._idle[connection]
            self.steps.check(connection, self._free)

    def _free(self, connection: Http1Connection) -> None:
        """Make a connection available again after its check."""
        if self.ledger.keeps and not self._closed:
            connection.used_at = time.monotonic()
            self._idle[connection] = None
        else:
            connection.abort()


_ID_FIELD = f"{REQUEST_ID}: ".encode()
