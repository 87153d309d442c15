"""Open a tunnel through an HTTP proxy to a TLS server (RFC 9110, section 9.3.6)."""

from __future__ import annotations

import asyncio
import re
from typing import cast

from serve_eval.client.transport import BadHttp, Disconnected, ProxyRefused

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
