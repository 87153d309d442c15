"""Connections: made directly or through a proxy, used again while they are good, and gone at the end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from serve_eval.client import pool
from serve_eval.client.client import Client
from serve_eval.client.pool import Address
from serve_eval.schema import Endpoint, Failure, FailureKind, Limits, Request, Response, SamplingParams
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer

T = TypeVar("T")
ANSWER = b'{"id": "%d", "choices": [{"text": "A", "finish_reason": "stop"}]}'
LIMITS = Limits(max_attempts=1, connect_timeout_s=10.0, stall_timeout_s=10.0)
REQUEST = Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=2))
LOOPS = ["asyncio", "uvloop"]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request of a connection."""
    number = 0
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            number += 1
            body = ANSWER % number
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        writer.close()


class Proxy:
    """Leads whoever asks by CONNECT to the place that he names."""

    def __init__(self, *, answer: bytes = b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n") -> None:
        self.answer, self.asked = answer, list[bytes]()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = self.asked[-1].split(b" ")[1].decode().rpartition(":")
        writer.write(self.answer)
        if b" 200 " not in self.answer:
            writer.close()
            return
        there, here = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pipe(reader, here), _pipe(there, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def _through(
    certificate: Path, proxy: Proxy, *, loop: str, tls_proxy: bool = False, credentials: str = ""
) -> list[Response | Failure]:
    """Two requests to an https endpoint through a proxy."""

    async def main() -> list[Response | Failure]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        async with (
            await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context) as server,
            await asyncio.start_server(proxy, "127.0.0.1", 0, ssl=context if tls_proxy else None) as between,
        ):
            url = f"https://localhost:{_port(server)}/v1"
            way = f"{'https' if tls_proxy else 'http'}://{credentials}localhost:{_port(between)}"
            async with Client(Endpoint(base_url=url), LIMITS, proxy=way, ca_bundle=str(certificate)) as client:
                results = [await client.send(REQUEST), await client.send(REQUEST)]
            await asyncio.sleep(0.05)  # the proxy's pipes end
            return results

    results: list[Response | Failure] = pytest.importorskip(loop).run(main())
    return results


@pytest.mark.parametrize("loop", LOOPS)
def test_an_https_endpoint_behind_a_proxy_is_asked_through_a_tunnel_that_is_kept(certificate: Path, loop: str) -> None:
    proxy = Proxy()
    results = _through(certificate, proxy, loop=loop, credentials="me:p%40ss@")
    assert [result.text if isinstance(result, Response) else result for result in results] == ["A", "A"]
    (asked,) = proxy.asked
    assert asked.startswith(b"CONNECT localhost:")
    assert b"Proxy-Authorization: Basic " + b64encode(b"me:p@ss") in asked
    assert b"Authorization: Bearer" not in asked


@pytest.mark.parametrize("loop", LOOPS)
def test_a_proxy_may_speak_tls_itself(certificate: Path, loop: str) -> None:
    results = _through(certificate, Proxy(), loop=loop, tls_proxy=True)
    assert [result.text if isinstance(result, Response) else result for result in results] == ["A", "A"]


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", FailureKind.HTTP_ERROR, "HTTP 407 of the proxy"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", FailureKind.HTTP_ERROR, "HTTP 502 of the proxy"),
        (b"what?\r\n\r\n", FailureKind.INVALID_RESPONSE, "no HTTP answer of the proxy"),
        (b"", FailureKind.DISCONNECTED, "the proxy closed the connection"),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_said(certificate: Path, answer: bytes, kind: FailureKind, said: str) -> None:
    for result in _through(certificate, Proxy(answer=answer), loop="asyncio"):
        assert isinstance(result, Failure)
        assert (result.kind, result.attempts[0].failure) == (kind, kind)
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
def test_where_an_address_leads(url: str, host: str, port: int, authority: str) -> None:
    address = Address(url)
    assert (address.host, address.port, address.authority) == (host, port, authority)


def _run(body: Callable[[Client, FaultyServer], Awaitable[T]], base_path: str = "/v1", **client: object) -> T:
    async def main() -> T:
        async with FaultyServer([act.sound]) as server:
            url = server.base_url.removesuffix("/v1") + base_path
            async with Client(Endpoint(base_url=url), LIMITS, **client) as c:  # type: ignore[arg-type]
                return await body(c, server)

    return asyncio.run(main())


def test_a_connection_is_used_again_until_it_has_rested_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "KEEPALIVE_S", 0.1)

    async def body(client: Client, server: FaultyServer) -> list[int]:
        for pause in (0.0, 0.0, 0.2):
            await asyncio.sleep(pause)
            assert isinstance(await client.send(REQUEST), Response)
        return [request.connection for request in server.received]

    assert _run(body) == [1, 1, 2]


def test_no_connection_outlives_its_client() -> None:
    async def body(client: Client, server: FaultyServer) -> Client:
        await asyncio.gather(*(client.send(REQUEST) for _ in range(20)))
        assert len(client._pool.lines) == 20
        return client

    assert not _run(body)._pool.lines


def test_a_path_and_headers_arrive_as_they_were_meant() -> None:
    given = {"user-agent": "mine", "Host": "other.example", "X-Request-ID": "not ours", "Content-Length": "1"}

    async def body(client: Client, server: FaultyServer) -> tuple[str, dict[str, str]]:
        assert isinstance(await client.send(REQUEST), Response)
        return server.received[0].path, dict(server.received[0].headers)

    path, headers = _run(body, base_path="/a b/v1/ä", headers=given)
    assert path == "/a%20b/v1/%C3%A4/completions"
    assert (headers["user-agent"], headers["host"]) == ("mine", "other.example")
    assert headers["x-request-id"].endswith("-1")
    assert headers["accept-encoding"] == "identity"


def test_a_name_with_several_addresses_is_reached_at_the_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))

        async def body(client: Client, server: FaultyServer) -> Response | Failure:
            port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
            places = [("127.0.0.1", silent.getsockname()[1]), ("127.0.0.1", port)]

            async def resolve(*_: object, **__: object) -> object:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
            return await client.send(REQUEST)

        assert isinstance(_run(body), Response)


def test_a_host_name_that_cannot_exist_is_not_tried_twice() -> None:
    async def main() -> Response | Failure:
        async with Client(Endpoint(base_url=f"http://{'x' * 70}.example/v1"), Limits()) as client:
            return await client.send(REQUEST)

    result = asyncio.run(main())
    assert isinstance(result, Failure)
    assert (result.kind, result.retryable, len(result.attempts)) == (FailureKind.DISCONNECTED, False, 1)
