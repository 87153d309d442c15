"""Serve the OpenAI API over HTTP: a socket, answers, event streams and time limits.

`requests` reads requests, `answers` formats answers, and `errors` refuses requests. Only this
module needs aiohttp, which is an extra.

Otherwise a client that sends half a request, or a byte at a time, holds its connection open without
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from serve_eval.launchers._http.requests import encode, trtllm_error
from serve_eval.launchers._machine import hosts

KEEPALIVE_S = 5.0
"""Idle seconds after which a connection is closed, as trtllm-serve does."""
SHUTDOWN_S = 0.2
"""Seconds that requests in progress may take when the server ends."""
LINGERING_S = 2.0
"""Seconds for which the rest of a request body is read after an early answer, so that the client
sees the answer."""


@asynccontextmanager
async def serve_app(
    app: web.Application, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve on `host` and yield the base URL, such as `http://127.0.0.1:PORT/v1`.

    `port` 0 means any free one. A request that does not arrive in time is answered with 408, and
    its connection closed. Raises OSError if the port is taken.
    """
    arrival = Arrival(_too_late)
    app.middlewares.insert(0, arrival.middleware)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=SHUTDOWN_S,
        lingering_time=LINGERING_S,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        connect = arrival.guard(runner.server)
        listening = await asyncio.get_running_loop().create_server(
            connect, host, port, backlog=1024
        )
        try:
            found = listening.sockets[0].getsockname()[1]
            yield f"http://{hosts.authority(host, found)}/v1"
        finally:
            listening.close()
    finally:
        await runner.cleanup()


def json_response(
    status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


async def send_stream(request: web.Request, events: AsyncIterable[bytes]) -> web.StreamResponse:
    """Send server-sent events as they come, as long as the client is there."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    with suppress(ConnectionResetError):
        async for event in events:
            await response.write(event)
        await response.write_eof()
    return response


def _too_late(message: str) -> web.Response:
    return json_response(408, encode(trtllm_error(message, "RequestTimeout", 408)))


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
