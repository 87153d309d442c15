"""A way through an HTTP proxy to a host that speaks TLS (RFC 9110, section 9.3.6)."""

from __future__ import annotations

import asyncio
import re
from typing import cast

from serve_eval.client.transport import BadHttp, Disconnected, ProxyRefused

MAX_HEAD = 65536
"""Bytes that the proxy's answer may have."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class Tunnel(asyncio.Protocol):
    """A connection to a proxy until the tunnel stands."""

    def __init__(self) -> None:
        self._head = b""
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    async def ask(self, place: str, credentials: dict[str, str]) -> asyncio.Transport:
        """The connection, once the proxy leads to `place`, a host:port. Raises ProxyRefused,
        BadHttp, Disconnected.
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
                raise BadHttp("no HTTP answer of the proxy")
        except BaseException:
            self._transport.abort()
            raise
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is none

    def data_received(self, data: bytes) -> None:
        self._head += data
        if (b"\r\n\r\n" in self._head or len(self._head) > MAX_HEAD) and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
