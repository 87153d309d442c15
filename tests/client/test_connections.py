"""Test connections: direct or through a proxy, reused while they work, and closed at the end."""

import asyncio
import gc
import socket
import ssl
from base64 import b64encode
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from serve_eval.client.client import Client
from serve_eval.client.http1 import transport as http1
from serve_eval.client.http1.transport import Http1Transport
from serve_eval.client.tls import Certificates, ServerAddress
from serve_eval.client.transport import CannotConnect
from serve_eval.errors import PlanError
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
from tests.client.kept import kept
from tests.clock import until

ANSWER = b'{"id": "%d", "choices": [{"text": "A", "finish_reason": "stop"}]}'
LIMITS = Limits(max_attempts=1, connect_timeout_s=10.0, stall_timeout_s=10.0)
REQUEST = Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=2))
LOOPS = ["asyncio", "uvloop"]


async def _answer(reader, writer):
    """Answer every request of a connection."""
    number = 0
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        number += 1
        body = ANSWER % number
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()


class Proxy:
    """A proxy that connects a client to the address named by CONNECT."""

    def __init__(self, *, answer=b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n"):
        self.answer, self.asked = answer, []

    async def __call__(self, reader, writer):
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = self.asked[-1].split(b" ")[1].decode().rpartition(":")
        writer.write(self.answer)
        if b" 200 " not in self.answer:
            return
        there, here = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pipe(reader, here), _pipe(there, writer))


async def _pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def _serving(handler, context=None):
    """Serve on a port for the length of a block and close every connection after it."""
    handling = set()

    async def handle(reader, writer):
        handling.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                await handler(reader, writer)
            finally:
                (
                    writer.transport.abort()
                    if writer.transport.get_write_buffer_size()
                    else writer.close()
                )

    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
    for _ in range(10):
        await asyncio.sleep(0.01)  # the loop notices aborted handshakes
    tasks = [task for task in handling if task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.01)


def _through(certificate, proxy, *, loop, tls_proxy=False, credentials=""):
    """Send two requests to an https endpoint through a proxy."""

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        async with (
            _serving(_answer, context) as server,
            _serving(proxy, context if tls_proxy else None) as between,
        ):
            url = f"https://localhost:{server}/v1"
            way = f"{'https' if tls_proxy else 'http'}://{credentials}localhost:{between}"
            async with kept(
                Client(
                    Endpoint(base_url=url),
                    LIMITS,
                    proxy=way,
                    certificates=Certificates(str(certificate)),
                )
            ) as client:
                return [await client.send(REQUEST), await client.send(REQUEST)]

    return pytest.importorskip(loop).run(main())


@pytest.mark.parametrize(
    ("why", "may_pass", "refused"),
    [
        (ConnectionRefusedError(), True, True),
        (OSError("no route to host"), True, True),
        (ssl.SSLError("handshake"), True, False),
        (ssl.SSLCertVerificationError(), False, False),
        (UnicodeError("label too long"), False, False),
    ],
)
def test_a_failed_connection_is_tried_again_only_where_that_may_help(why, may_pass, refused):
    failed = CannotConnect(ServerAddress("http://h:1"), why)
    assert (failed.may_pass, failed.refused) == (may_pass, refused)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_https_endpoint_behind_a_proxy_is_asked_through_a_tunnel_that_is_kept(certificate, loop):
    proxy = Proxy()
    results = _through(certificate, proxy, loop=loop, credentials="me:p%40ss@")
    assert [result.text if isinstance(result, Response) else result for result in results] == [
        "A",
        "A",
    ]
    (asked,) = proxy.asked
    assert asked.startswith(b"CONNECT localhost:")
    assert b"Proxy-Authorization: Basic " + b64encode(b"me:p@ss") in asked
    assert b"Authorization: Bearer" not in asked


@pytest.mark.parametrize("loop", LOOPS)
def test_a_proxy_may_speak_tls_itself(certificate, loop):
    results = _through(certificate, Proxy(), loop=loop, tls_proxy=True)
    assert [result.text if isinstance(result, Response) else result for result in results] == [
        "A",
        "A",
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            FailureKind.HTTP_ERROR,
            "HTTP 407 from the proxy",
        ),
        (
            b"HTTP/1.1 407 No\r\nContent-Length: 6\r\n\r\n<html>",
            FailureKind.HTTP_ERROR,
            "HTTP 407 from the proxy",
        ),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", FailureKind.HTTP_ERROR, "HTTP 502 from the proxy"),
        (b"what?\r\n\r\n", FailureKind.INVALID_RESPONSE, "no HTTP answer from the proxy"),
        (b"", FailureKind.DISCONNECTED, "the proxy closed the connection"),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_said(certificate, answer, kind, said):
    for result in _through(certificate, Proxy(answer=answer), loop="asyncio"):
        assert isinstance(result, Failure)
        assert (result.kind, result.attempts[0].failure) == (kind, kind)
        assert (
            result.attempts[0].status
            == result.status
            == (int(answer[9:12]) if kind is FailureKind.HTTP_ERROR else None)
        )
        assert said in result.message


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://h/v1", "h", 80, "h"),
        ("http://h:8000/v1", "h", 8000, "h:8000"),
        ("https://h", "h", 443, "h"),
        ("https://h:80", "h", 80, "h:80"),
        ("http://[::1]:8000/v1", "::1", 8000, "[::1]:8000"),
        ("http://bücher.example", "bücher.example", 80, "xn--bcher-kva.example"),
    ],
)
def test_where_an_address_leads(url, host, port, authority):
    address = ServerAddress(url)
    assert (address.host, address.port, address.authority) == (host, port, authority)


def _run(body, base_path="/v1", **client):
    async def main():
        async with FaultyServer([act.sound]) as server:
            url = server.base_url.removesuffix("/v1") + base_path
            endpoint = Endpoint(base_url=url)
            async with kept(Client(endpoint, LIMITS, **client)) as c:
                return await body(c, server)

    return asyncio.run(main())


def test_a_connection_is_used_again_until_it_has_rested_too_long(
    monkeypatch,
):
    monkeypatch.setattr(http1, "KEEPALIVE_S", 0.1)

    async def body(client, server):
        for pause in (0.0, 0.0, 0.2):
            await asyncio.sleep(pause)
            assert isinstance(await client.send(REQUEST), Response)
        return [request.connection for request in server.received]

    assert _run(body) == [1, 1, 2]


def _connections(client):
    assert isinstance(client.transport, Http1Transport)
    return client.transport.connections


def test_no_connection_outlives_its_client():
    async def body(client, server):
        await asyncio.gather(*(client.send(REQUEST) for _ in range(20)))
        assert len(_connections(client)) == 20
        return client

    assert not _connections(_run(body))


def test_a_path_and_headers_arrive_as_they_were_meant():
    given = {
        "user-agent": "mine",
        "host": "other.example",
        "X-Request-ID": "not ours",
        "Content-Length": "1",
    }

    async def body(client, server):
        assert isinstance(await client.send(REQUEST), Response)
        return server.received[0].path, dict(server.received[0].headers)

    path, headers = _run(body, base_path="/a b/v1/ä", headers=given)
    assert path == "/a%20b/v1/%C3%A4/completions"
    assert (headers["user-agent"], headers["host"]) == ("mine", "other.example")
    assert headers["x-request-id"].endswith("-000000000001")
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("name", ["Host", "host", "HOST", None])
async def test_a_request_has_one_host_and_it_is_the_given_one(name):
    """Servers refuse a request with two (RFC 9112, 3.2)."""
    heads = []

    async def take(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        headers = {} if name is None else {name: "other.example"}
        endpoint = Endpoint(base_url=f"http://{place}/v1")
        async with Client(endpoint, Limits(max_attempts=1), headers=headers) as client:
            await client.send(REQUEST)
    lines = heads[0].decode().split("\r\n")
    hosts = [line.partition(": ")[2] for line in lines if line.lower().startswith("host:")]
    assert hosts == [place if name is None else "other.example"]


def test_a_name_with_several_addresses_is_reached_at_the_one_that_answers(
    monkeypatch,
):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))

        async def body(client, server):
            port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
            places = [("127.0.0.1", silent.getsockname()[1]), ("127.0.0.1", port)]

            async def resolve(*_, **__):
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
            return await client.send(REQUEST)

        assert isinstance(_run(body), Response)


async def test_a_host_name_that_cannot_exist_is_not_tried_twice():
    async with kept(Client(Endpoint(base_url=f"http://{'x' * 70}.example/v1"), Limits())) as client:
        result = await client.send(REQUEST)
    assert isinstance(result, Failure)
    assert (result.kind, result.retryable, len(result.attempts)) == (
        FailureKind.DISCONNECTED,
        False,
        1,
    )


@pytest.mark.parametrize(
    "headers",
    [{"X\r\nEvil: 1": "1"}, {"X Y": "1"}, {"X": "1\r\nEvil: 1"}, {"X-\u20ac": "1"}, {"": "1"}],
)
def test_a_header_that_cannot_be_sent_is_refused_and_the_key_is_not_told(
    headers,
):
    with pytest.raises(PlanError, match="cannot be sent in a header") as caught:
        Client(Endpoint(base_url="http://h/v1"), LIMITS, api_key="sk-0123456789", headers=headers)
    assert "sk-0123456789" not in repr(caught.value)


@pytest.mark.parametrize("url", ["http://\u00fc..x/v1", "ftp://h/v1", "http:///v1"])
def test_what_is_no_address_of_a_host_is_refused(url):
    with pytest.raises(PlanError, match="expected an http or https URL with a host"):
        Client(Endpoint(base_url=url), LIMITS)


async def test_a_proxy_that_echoes_the_request_tells_no_secret():
    async def echo(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 407 No\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(head), head)
        )
        writer.close()

    async with _serving(echo) as server:
        way = f"http://me:pa55word@127.0.0.1:{server}"
        endpoint = Endpoint(base_url="http://model.invalid/v1")
        async with kept(Client(endpoint, LIMITS, proxy=way, api_key="sk-0123456789")) as client:
            result = await client.send(REQUEST)
    assert isinstance(result, Failure)
    assert (result.status, "Proxy-Authorization: Basic ***" in result.message) == (407, True)
    for secret in ("pa55word", b64encode(b"me:pa55word").decode(), "sk-0123456789"):
        assert secret not in result.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_is_masked_however_it_is_written_and_wherever_a_message_is_cut(stream):
    key = "sk-abc/def+0123456789"
    escaped = key.replace("/", "\\/").replace("+", "\\u002b")
    long_key = "sk-" + "x" * 150

    async def ask(act_, key):
        async with FaultyServer([act_]) as server:
            limits = replace(LIMITS, stream=stream)
            async with kept(
                Client(Endpoint(base_url=server.base_url), limits, api_key=key)
            ) as client:
                return await client.send(REQUEST)

    refusal = f'{{"error": {{"message": "bad key {escaped}"}}}}'.encode()
    refused = asyncio.run(ask(act.replies(refusal, "401 Unauthorized"), key))
    assert isinstance(refused, Failure)
    assert refused.message == "HTTP 401: bad key ***"
    said = f'{{"choices": [{{"text": "your key is {escaped}", "finish_reason": "stop"}}]}}'.encode()
    answered = asyncio.run(ask(act.replies(said), key))
    assert isinstance(answered, Response)
    assert answered.text == "your key is ***"
    error = b'{"error": {"message": "' + b"a" * 560 + long_key.encode() + b'"}}'
    for body, kind in (
        (error, "application/json"),
        (b"data: " + error + b"\n\n", "text/event-stream"),
    ):
        cut = asyncio.run(ask(act.replies(body, content_type=kind), long_key))
        assert isinstance(cut, Failure)
        assert "xxx" not in cut.message


async def test_one_look_up_serves_all_who_wait_and_its_error_is_told_to_all(
    monkeypatch,
):
    asked = []

    async def resolve(host, *_, **__):
        asked.append(host)
        await asyncio.sleep(0.2)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    limits = replace(LIMITS, connect_timeout_s=1.0)
    async with kept(Client(Endpoint(base_url="http://model.invalid/v1"), limits)) as client:
        results = await asyncio.gather(*(client.send(REQUEST) for _ in range(20)))
    assert {result.message for result in results if isinstance(result, Failure)} == {
        "cannot connect to model.invalid:80: Temporary failure in name resolution"
    }
    assert (len(results), len(asked)) == (20, 1)


async def test_connections_take_the_addresses_of_a_name_in_turn(
    monkeypatch,
):
    async with FaultyServer([act.sound]) as one, FaultyServer([act.sound]) as other:
        ports = [
            int(server.base_url.rpartition(":")[2].removesuffix("/v1")) for server in (one, other)
        ]

        async def resolve(*_, **__):
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
        async with kept(Client(Endpoint(base_url="http://model.invalid/v1"), LIMITS)) as client:
            await asyncio.gather(*(client.send(REQUEST) for _ in range(10)))
        assert [one.connections, other.connections] == [5, 5]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["plain", "tls", "tunnel"])
def test_a_sample_given_up_at_any_moment_leaves_nothing_behind(certificate, kind, loop):
    said = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(str(told)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        async with (
            _serving(_answer, None if kind == "plain" else context) as server,
            _serving(Proxy()) as between,
        ):
            more = {} if kind == "plain" else {"certificates": Certificates(str(certificate))}
            if kind == "tunnel":
                more["proxy"] = f"http://localhost:{between}"
            url = f"http{'' if kind == 'plain' else 's'}://localhost:{server}/v1"
            for turns in range(40):
                ours = Client(Endpoint(base_url=url), LIMITS, **more)
                async with kept(ours) as client:
                    task = asyncio.create_task(client.send(REQUEST))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                assert not _connections(client), turns

    pytest.importorskip(loop).run(main())
    gc.collect()
    assert said == []


async def test_a_handshake_that_stalls_ends_with_the_time_to_connect():
    async def mute(reader, writer):
        await reader.read()
        writer.close()

    async with _serving(mute) as server:
        limits = replace(LIMITS, connect_timeout_s=0.3)
        async with kept(
            Client(Endpoint(base_url=f"https://localhost:{server}/v1"), limits)
        ) as client:
            result = await client.send(REQUEST)
    assert isinstance(result, Failure)
    assert (result.kind, result.message) == (FailureKind.TIMEOUT, "no connection within 0.3 s")


def test_only_an_answer_on_a_connection_that_had_one_says_on_which_and_how_many_it_had():
    async def body(client, server):
        both = await asyncio.gather(client.send(REQUEST), client.send(REQUEST))
        results = [*both, *[await client.send(REQUEST) for _ in range(2)]]
        return [
            (attempt.connection, attempt.turn) for result in results for attempt in result.attempts
        ]

    *first, third, fourth = _run(body)
    assert first == [(0, 0), (0, 0)]
    assert third[0] in (1, 2)
    assert third[1] == 2
    assert fourth == (third[0], 3)  # the connection that was used last


def test_a_connection_that_is_idle_is_checked_before_its_server_may_close_it(
    monkeypatch,
):
    monkeypatch.setattr(http1, "IDLE_S", 0.05)

    async def body(client, server):
        for _ in range(3):
            assert isinstance(await client.send(REQUEST), Response)
        async with asyncio.timeout(20):
            await until(lambda: bool(server.checks))
        return [check.connection for check in server.checks]

    assert _run(body) == [1]
