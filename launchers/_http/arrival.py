"""Limit the time in which a request must arrive.

Otherwise a client that sends half a request, or a byte at a time, holds its connection open without
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

HEAD_S = 4.0
"""Seconds from the start of a connection to the end of its first head. Later heads have the time
that a connection may be idle."""
BODY_S = 30.0
"""Seconds from the end of the head to the end of the body; 16 MiB arrive faster over a slow
line."""
HOPS = 10
"""Turns of the event loop between reading a head and its request: more than aiohttp takes."""

_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Arrival:
    """Closes the connections of a server whose requests do not arrive in time, with a 408.

    `guard` wraps the protocol factory of the server and limits heads; `middleware` limits bodies
    and must come first.
    """

    def __init__(self, refuse: Callable[[str], web.Response]) -> None:
        self._refuse = refuse
        self._waiting: dict[object, asyncio.TimerHandle] = {}

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def note_arrival(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._body(request, handler)

        return note_arrival

    def guard(self, server: web.Server) -> Callable[[], web.RequestHandler]:
        loop = asyncio.get_running_loop()

        def connect() -> web.RequestHandler:
            connection = server()
            self._waiting[connection] = loop.call_later(HEAD_S, self._head, connection, HOPS)
            return connection

        return connect

    def _head(self, connection: web.RequestHandler, hops: int) -> None:
        if connection not in self._waiting:
            return
        # If the loop was blocked, a head that came in time may just have been read.
        if hops:
            asyncio.get_running_loop().call_soon(self._head, connection, hops - 1)
            return
        del self._waiting[connection]
        if connection.transport is not None:
            connection.transport.write(_TIMEOUT)
        connection.force_close()

    async def _body(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        timer = self._waiting.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()
        try:
            async with asyncio.timeout(BODY_S):
                await request.read()
        except TimeoutError:
            response = self._refuse(f"the body of the request did not arrive within {BODY_S:g} s")
            response.force_close()
            return response
        return await handler(request)
