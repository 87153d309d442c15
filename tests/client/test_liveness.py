"""Test whether a refused or lost connection means that no server listens, and for how long."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from serve_eval.client.attempts import liveness as module
from serve_eval.client.attempts.liveness import LivenessGuard
from serve_eval.client.client import Client
from serve_eval.errors import EndpointError
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Request,
    Response,
    SamplingParams,
)
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.clock import until

ASKED = Request(sample_id="1", prompt="question 1", sampling=SamplingParams(max_tokens=20))
LONG_S = 600.0
"""Longer than any test takes."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "PROBE_S", 0.05)
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)


@pytest.fixture
def port():
    """Hold a port at which nobody listens, so that no other test takes it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lets a server listen at it
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@asynccontextmanager
async def _watched(guard):
    watching = asyncio.create_task(guard.watch())
    await asyncio.sleep(0)
    try:
        yield watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("timeout_s", [0.0, 0.2])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_address_that_refuses_for_the_time_of_an_outage_is_gone(host, timeout_s, port):
    told = []

    async def main():
        guard = LivenessGuard(timeout_s, told.append)
        async with _watched(guard) as watching:
            # Every caller that waits gets the error.
            with pytest.raises(EndpointError, match="no server listens"):
                await guard.outage(host, port)
            await watching

    with pytest.raises(
        EndpointError, match=f"no server listens at {host}:{port} any more"
    ) as caught:
        asyncio.run(main())
    lasted = ": every connection was refused for 0.2 s" if timeout_s else ""
    assert str(caught.value).endswith(f"any more{lasted}")
    # Some commands take no --set: a plan has the key.
    assert "--set limits.outage_timeout_s=S, or this key of a plan," in caught.value.hint
    assert len(told) == (timeout_s > 0)


async def test_a_request_during_an_outage_waits_until_a_server_listens(port):
    told = []
    guard = LivenessGuard(LONG_S, told.append)
    async with _watched(guard) as watching:
        first = [asyncio.create_task(guard.outage("127.0.0.1", port)) for _ in range(50)]
        await until(lambda: guard.closed)
        assert told == [f"no server listens at 127.0.0.1:{port}: requests wait up to 600 s"]
        later = [asyncio.create_task(guard.outage("127.0.0.1", port)) for _ in range(50)]
        first[0].cancel()
        async with await asyncio.start_server(
            lambda reader, writer: writer.close(), "127.0.0.1", port
        ):
            assert await asyncio.gather(*first[1:], *later) == [True] * 99
        assert not guard.closed
        assert not watching.done()
        assert 0 < guard.spent_s < LONG_S
    assert len(told) == 2
    assert told[1].startswith(f"a server listens at 127.0.0.1:{port} again after ")


async def test_outages_without_an_answer_in_between_share_their_time(port):
    guard = LivenessGuard(LONG_S)
    async with _watched(guard) as watching:
        guard.spent_s = LONG_S
        with pytest.raises(EndpointError):
            await guard.outage("127.0.0.1", port)
        assert watching.done()


@pytest.mark.parametrize("host", ["model.invalid", "127.0.0.1"])
async def test_where_somebody_listens_or_nobody_can_tell_there_is_no_outage(host):
    async with (
        await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as server,
        _watched(guard := LivenessGuard(0.0)),
    ):
        assert not await guard.outage(host, server.sockets[0].getsockname()[1])
        assert not guard.closed


async def test_a_guard_that_nobody_watches_keeps_nobody(port):
    guard = LivenessGuard(LONG_S)
    assert not await guard.outage("127.0.0.1", port)
    async with _watched(guard):
        waiting = asyncio.create_task(guard.outage("127.0.0.1", port))
        await until(lambda: guard.closed)
    assert not await waiting
    assert not guard.closed
    assert not await asyncio.wait_for(guard.outage("127.0.0.1", port), 10)


# Waiting requests


def _with(server, limits, body):
    async def main():
        async with (
            server,
            Client(Endpoint(base_url=server.base_url), limits) as client,
            _watched(client.liveness),
        ):
            return await body(client)

    return asyncio.run(main())


def _told_when_closed(client):
    closed = asyncio.Event()
    client.liveness.notify = lambda line: closed.set()
    return closed


def test_while_nobody_listens_no_attempt_no_budget_and_no_time_is_spent():
    server = FaultyServer([act.sound], listening=False)

    async def body(client):
        client.retry_budget = 0
        closed = _told_when_closed(client)
        asked = [asyncio.create_task(client.send(ASKED)) for _ in range(64)]
        await closed.wait()
        late = asyncio.create_task(client.send(ASKED))
        await asyncio.sleep(1.7)  # longer than the time limit of a sample
        await server.listen()
        results = await asyncio.gather(*asked, late)
        assert client.retries == 0
        assert client.liveness.spent_s == 0.0
        return results

    limits = Limits(max_attempts=1, sample_timeout_s=1.5, outage_timeout_s=LONG_S)
    *early, late = _with(server, limits, body)
    assert all(isinstance(result, Response) for result in early)
    assert [a.failure for a in early[0].attempts] == [FailureKind.DISCONNECTED, None]
    assert [a.failure for a in late.attempts] == [None]  # it did not even try to connect


def _dies(deaths):
    """Return a server that dies with its first requests, this number of times.

    Its connections end first, then its listening socket. It comes back once the guard is closed.
    """
    left = deaths

    async def die(turn):
        nonlocal left
        if not left:
            await act.sound(turn)
            return
        left -= 1
        server.stop_listening()
        turn.writer.transport.abort()

    server = FaultyServer(lambda request: die)
    return server


@pytest.mark.parametrize(("deaths", "counted"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_an_attempt_that_met_the_end_of_a_server_costs_nothing_but_not_for_ever(deaths, counted):
    """A prompt that ends its server every time fails in the end."""
    server = _dies(deaths)

    async def body(client):
        asked = asyncio.create_task(client.send(ASKED))
        while not asked.done():
            if client.liveness.closed:
                await server.listen()
                await until(lambda: not client.liveness.closed)
            await asyncio.sleep(0.01)
        return asked.result(), client.retries

    result, retries = _with(server, Limits(max_attempts=2, outage_timeout_s=LONG_S), body)
    assert isinstance(result, Response if counted < 2 else Failure)
    assert retries == min(counted, 1)


def test_the_time_of_an_attempt_that_met_the_end_of_a_server_is_given_back():
    async def slow(turn):
        if turn.request.number == 1:
            await asyncio.sleep(0.9)
            server.stop_listening()
            turn.writer.transport.abort()
            return
        await asyncio.sleep(0.4)
        await act.sound(turn)

    server = FaultyServer(lambda request: slow)

    async def body(client):
        closed = _told_when_closed(client)
        asked = asyncio.create_task(client.send(ASKED))
        await closed.wait()
        await server.listen()
        return await asked

    assert isinstance(
        _with(server, Limits(sample_timeout_s=1.2, outage_timeout_s=LONG_S), body), Response
    )


def test_a_connection_that_is_lost_while_somebody_listens_is_an_attempt():
    server = FaultyServer([act.hangs_up])

    async def body(client):
        return await client.send(ASKED), client.retries

    result, retries = _with(server, Limits(max_attempts=3), body)
    assert isinstance(result, Failure)
    assert (len(result.attempts), retries) == (3, 2)


async def test_the_guard_asks_at_the_address_of_the_endpoint():
    """The same port on another address of this machine shows nothing about the endpoint."""
    async with await asyncio.start_server(
        lambda reader, writer: writer.close(), "127.0.0.1", 0
    ) as other:
        port, told = other.sockets[0].getsockname()[1], []
        limits = Limits(max_attempts=1, outage_timeout_s=LONG_S)
        async with Client(Endpoint(base_url=f"http://127.0.0.2:{port}/v1"), limits) as client:
            client.liveness.notify = told.append
            async with _watched(client.liveness):
                asked = asyncio.create_task(client.send(ASKED))
                await until(lambda: bool(told) or asked.done())
                asked.cancel()
                assert [line.partition(":")[0] for line in told] == [
                    "no server listens at 127.0.0.2"
                ]


def test_refusals_for_whatever_outages_are_no_attempts():
    """There are more refusals than a sample has attempts, each from its own outage."""
    server = FaultyServer([act.sound], listening=False)

    async def body(client):
        outages = 0

        async def outage(host, port):
            nonlocal outages
            outages += 1
            if outages == 5:
                await server.listen()
            return True

        client.liveness.outage = outage
        return await client.send(ASKED), outages

    result, outages = _with(server, Limits(max_attempts=2, outage_timeout_s=LONG_S), body)
    assert isinstance(result, Response)
    assert outages == 5
    assert len(result.attempts) == 6
