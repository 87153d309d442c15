"""Test that certificates are checked; only naming one as trusted changes that."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import openai
import pytest

from serve_eval.client.client import Client
from serve_eval.client.connection import openai_client
from serve_eval.client.tls import Certificates
from serve_eval.schema import (
    Connection,
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Plan,
    Request,
    Response,
    SamplingParams,
    Spec,
)

T = TypeVar("T")

ANSWER = b'{"id": "c-1", "choices": [{"text": "A", "finish_reason": "stop"}]}'


Sends = Callable[[str, str | None], Awaitable[T]]
"""A function that sends a request to a base URL, trusting a bundle."""


async def _by_client(url: str, ca_bundle: str | None) -> Response | Failure:
    async with Client(
        Endpoint(base_url=url), Limits(max_attempts=3), certificates=Certificates(ca_bundle)
    ) as client:
        sampling = SamplingParams(max_tokens=2)
        return await client.send(Request(sample_id="1", prompt="p", sampling=sampling))


async def _by_package(url: str, ca_bundle: str | None) -> str:
    connection = Connection(ca_bundle=ca_bundle)
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    async with openai_client(plan, url, {}, timeout_s=20.0) as package:
        return (await package.completions.create(model="m", prompt="p")).choices[0].text


def _send(certificate: Path, ca_bundle: str | None, sends: Sends[T], host: str = "localhost") -> T:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
        await writer.drain()
        writer.close()

    async def main() -> T:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            url = f"https://{host}:{server.sockets[0].getsockname()[1]}/v1"
            return await sends(url, ca_bundle)

    return asyncio.run(main())


def test_an_unknown_certificate_is_refused_and_said(certificate: Path) -> None:
    result = _send(certificate, None, _by_client)
    assert isinstance(result, Failure)
    assert result.kind is FailureKind.DISCONNECTED
    assert "certificate" in result.message.lower()
    assert (result.retryable, len(result.attempts)) == (False, 1)


def test_a_certificate_for_another_name_is_refused(certificate: Path) -> None:
    result = _send(certificate, str(certificate), _by_client, host="127.0.0.1")
    assert isinstance(result, Failure)
    assert "127.0.0.1" in result.message


def test_a_certificate_that_is_trusted_by_name_is_accepted(certificate: Path) -> None:
    result = _send(certificate, str(certificate), _by_client)
    assert isinstance(result, Response)
    assert result.text == "A"


def test_the_official_package_trusts_the_same_and_nothing_else(certificate: Path) -> None:
    """Neither transport takes part: the official package makes its own connections."""
    assert _send(certificate, str(certificate), _by_package) == "A"
    with pytest.raises(openai.APIConnectionError):
        _send(certificate, None, _by_package)
