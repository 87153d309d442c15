"""Open connections: look up names, try addresses, and set up TLS and proxies."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import cast

import aiohappyeyeballs

from serve_eval.client.http1.connection import Http1Connection
from serve_eval.client.tls import Certificates, ServerAddress, ssl_context
from serve_eval.client.transport import BadHttp, CannotConnect, Disconnected, ProxyRefused

ADDRESSES_S = 10.0
"""Seconds for which the addresses of a name are cached."""
NEXT_ADDRESS_S = 0.25
"""Seconds without a connection before the next address of a name is tried too (RFC 8305)."""


class Dialer:
    """Makes connections to `target`, or through `proxy`, within `timeout_s` from look-up to TLS.

    A proxy gets a CONNECT for https. Raises PlanError for `certificates` that cannot be used.
    """

    def __init__(
        self,
        target: ServerAddress,
        proxy: ServerAddress | None,
        *,
        certificates: Certificates,
        timeout_s: float,
        new_connection: Callable[[], Http1Connection],
        lost: Callable[[Http1Connection], None],
    ) -> None:
        self._target, self._proxy, self._timeout_s = target, proxy, timeout_s
        self._new_connection, self._lost = new_connection, lost
        self._ssl = ssl_context(target, proxy, certificates)
        self._addresses: Sequence[aiohappyeyeballs.AddrInfoType]
        self._resolved_at, self._turn = 0.0, 0
        self._lookup: asyncio.Task[None] | None = None

    @property
    def first(self) -> ServerAddress:
        """The address that connections are made to."""
        return self._proxy or self._target

    async def dial(self) -> Http1Connection:
        """Return a new connection.

        Raises CannotConnect, TimeoutError and the errors of Tunnel.ask.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._connect(self.first)
        except TimeoutError:
            self._resolved_at = 0.0
            raise
        except (
            OSError,
            UnicodeError,
            RuntimeError,
        ) as error:  # uvloop raises RuntimeError for some sockets
            self._resolved_at = 0.0
            raise CannotConnect(self.first, error) from error

    async def _connect(self, first: ServerAddress) -> Http1Connection:
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(first)
        began = time.monotonic()
        sock = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
        )
        round_trip_s = time.monotonic() - began
        tls, name, patience_s = (
            (self._ssl, first.host, self._timeout_s) if first.tls else (None, None, None)
        )
        if self._proxy is None or not self._target.tls:
            connection = self._new_connection()
            connection.round_trip_s = round_trip_s
            try:
                await loop.create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=tls,
                    server_hostname=name,
                    ssl_handshake_timeout=patience_s,
                )
            except BaseException:
                connection.abort()
                self._lost(
                    connection
                )  # uvloop does not notify the protocol of a transport that was cancelled
                raise
            return connection
        _, tunnel = await loop.create_connection(
            Tunnel, sock=sock, ssl=tls, server_hostname=name, ssl_handshake_timeout=patience_s
        )
        return await self._through(tunnel, self._proxy)

    async def _through(self, tunnel: Tunnel, proxy: ServerAddress) -> Http1Connection:
        """Return a connection to the target through the proxy's tunnel."""
        target, connection = self._target, self._new_connection()
        transport = await tunnel.ask(f"{target.name}:{target.port}", proxy.credentials)
        assert self._ssl is not None
        try:
            inner = await asyncio.get_running_loop().start_tls(
                transport,
                connection,
                self._ssl,
                server_hostname=target.host,
                ssl_handshake_timeout=self._timeout_s,
            )
        except ssl.SSLError as error:
            transport.abort()
            raise CannotConnect(target, error) from error
        except BaseException:
            transport.abort()
            raise
        if inner is None:
            raise OSError("the connection ended")
        connection.connection_made(inner)
        return connection

    async def _resolve(self, address: ServerAddress) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        """Return the addresses of a name, starting with another one for each connection.

        One look-up serves all callers that wait.
        """
        if not self._resolved_at or time.monotonic() - self._resolved_at > ADDRESSES_S:
            if self._lookup is None:
                self._lookup = asyncio.create_task(self._look_up(address))
                self._lookup.add_done_callback(_retrieve)
            await asyncio.shield(self._lookup)
        self._turn += 1
        first = self._turn % len(self._addresses)
        return [*self._addresses[first:], *self._addresses[:first]]

    async def _look_up(self, address: ServerAddress) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._addresses = await loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )
            self._resolved_at = time.monotonic()
        finally:
            self._lookup = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the error of a task as retrieved."""
    if not task.cancelled():
        task.exception()


MAX_HEAD = 65536
"""Maximum size of the proxy's answer in bytes."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class Tunnel(asyncio.Protocol):
    """A connection to a proxy until the tunnel is open."""

    def __init__(self) -> None:
        self._head = b""
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    async def ask(self, place: str, credentials: dict[str, str]) -> asyncio.Transport:
        """Return the connection once the proxy has opened the tunnel to `place`, a host:port.

        Raises ProxyRefused, BadHttp or Disconnected.
        """
        assert self._transport is not None
        lines = [
            f"CONNECT {place} HTTP/1.1",
            f"Host: {place}",
            *map(": ".join, credentials.items()),
            "",
            "",
        ]
        try:
            self._transport.write("\r\n".join(lines).encode("latin-1"))
            await self._answered
            if not self._head:
                raise Disconnected("the proxy closed the connection")
            told = _STATUS_LINE.match(self._head)
            if told is not None and not 200 <= int(told[1]) < 300:
                raise ProxyRefused(int(told[1]))
            if told is None or not self._head.endswith(b"\r\n\r\n"):
                raise BadHttp("no HTTP answer from the proxy")
        except BaseException:
            self._transport.abort()
            raise
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        self._head += data
        if (b"\r\n\r\n" in self._head or len(self._head) > MAX_HEAD) and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
