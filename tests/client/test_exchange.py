"""Test a request that is sent unchanged: the reply as it came, or why it failed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from serve_eval.client.client import Client
from serve_eval.client.transport import Disconnected
from serve_eval.client.wire_format.reply import Reply, TooLarge
from serve_eval.launchers._http.server import serve_app
from serve_eval.schema import Endpoint, Failure, FailureKind, Limits


def _exchange(
    handler: Any, method: str = "POST", body: bytes | None = b"{}", **more: Any
) -> Reply | Failure:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)

    async def main() -> Reply | Failure:
        async with (
            serve_app(app) as url,
            Client(Endpoint(base_url=url), Limits(connect_timeout_s=5.0)) as client,
        ):
            return await client.exchange(method, "/any/path", body, **more)

    return asyncio.run(main())


async def _tells(request: web.Request) -> web.Response:
    return web.json_response(
        [request.method, request.path, (await request.read()).decode()], status=418
    )


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", b'{"a": 1}')])
def test_any_method_path_and_status(method: str, body: bytes | None) -> None:
    reply = _exchange(_tells, method, body)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.error, reply.whole) == (418, None, True)
    assert json.loads(reply.content) == [method, "/any/path", (body or b"").decode()]


async def _streams(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(200):
        await response.write(b"data: {oops %d\n\n" % number)
    return response


def test_an_event_stream_comes_as_it_is() -> None:
    reply = _exchange(_streams)
    assert isinstance(reply, Reply)
    assert reply.stream is None
    assert (reply.content.count(b"data: "), reply.error) == (200, None)


def test_more_than_is_wanted_is_not_read() -> None:
    reply = _exchange(_streams, most_bytes=20)
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, TooLarge)


async def _waits(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def _waits_within(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half")
    await asyncio.sleep(30)
    return response


async def _hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _hangs_up_within(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half")
    await asyncio.sleep(0.05)
    return await _hangs_up(request)


def test_no_answer_in_time_is_a_failure_and_half_of_one_a_reply() -> None:
    none = _exchange(_waits, timeout_s=0.2)
    assert isinstance(none, Failure)
    assert (none.kind, none.message) == (FailureKind.TIMEOUT, "no answer within 0.2 s")
    half = _exchange(_waits_within, timeout_s=0.3)
    assert isinstance(half, Reply)
    assert (half.status, half.content, str(half.error)) == (
        200,
        b"half",
        "no complete answer within 0.3 s",
    )


def test_a_lost_connection_is_a_failure_and_half_an_answer_a_reply() -> None:
    none = _exchange(_hangs_up)
    assert isinstance(none, Failure)
    assert none.kind is FailureKind.DISCONNECTED
    half = _exchange(_hangs_up_within)
    assert isinstance(half, Reply)
    assert (half.content, type(half.error)) == (b"half", Disconnected)
