"""The OpenAI-compatible HTTP layer of our servers: a socket, answers, event streams and errors.

`requests` reads requests, `answers` formats answers, and `errors` refuses requests. Only this
module needs aiohttp, which is an extra.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from serve_eval.launchers._http.arrival import Arrival
from serve_eval.launchers._http.errors import encode, trtllm_error
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
