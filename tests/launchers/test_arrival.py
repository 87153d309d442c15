"""Test requests that never arrive whole, with our servers' limit set to milliseconds."""

import asyncio

import pytest

from serve_eval.launchers._embedded.server import create_app as embedded
from serve_eval.launchers._http import server
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._simulated.simulator import SimulatorConfig
from serve_eval.launchers._simulated.simulator import create_app as simulated
from tests.launchers.embedded import tiny
from tests.scripted_server import ScriptedServer, after, raw

SHORT_S = 0.05
NEVER_S = 3600.0
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"


def _embedded(folder):
    return embedded(tiny.write(folder / "model"), {"tiny": "none"})


def _simulated(folder):
    return simulated(SimulatorConfig())


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(server, "HEAD_S", SHORT_S)
    monkeypatch.setattr(server, "BODY_S", SHORT_S)
    monkeypatch.setattr(server, "KEEPALIVE_S", NEVER_S)
    monkeypatch.setattr(server, "LINGERING_S", SHORT_S)


async def _until_closed(url, start, *, dripping=False):
    """Return the bytes that arrive until the server closes the connection."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(url.split(":")[2].split("/")[0])
    )

    async def drip():
        while True:
            writer.write(b"x")
            await asyncio.sleep(SHORT_S / 10)

    writer.write(start)
    more = asyncio.create_task(drip()) if dripping else None
    try:
        said = b""
        while part := await reader.read(4096):
            said += part
        return said
    except ConnectionResetError:
        return said
    finally:
        if more is not None:
            more.cancel()
        writer.close()


@pytest.mark.parametrize("make", [_embedded, _simulated])
@pytest.mark.parametrize("dripping", [False, True])
@pytest.mark.parametrize(
    "start",
    [b"", b"POST /v1/comp", HEAD[:-2], HEAD, HEAD + b"{", CHUNKED],
    ids=lambda start: str(len(start)),
)
async def test_a_request_that_never_arrives_is_answered_408_and_closed(
    make, start, dripping, tmp_path
):
    async with asyncio.timeout(60), serve_app(make(tmp_path)) as url:
        said = await _until_closed(url, start, dripping=dripping)
    # What drips there is no HTTP and may be answered as such.
    bad = dripping and start in (b"", CHUNKED)
    assert said.startswith(b"HTTP/1.1 408 ") or (bad and (said.startswith(b"HTTP/1") or not said))
    assert b"\r\nConnection: close\r\n" in said or bad


async def test_a_later_request_of_a_connection_has_the_limit_too(tmp_path):
    async with asyncio.timeout(60), serve_app(_simulated(tmp_path)) as url:
        said = await _until_closed(url, b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n" + HEAD)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in said


async def test_a_slow_answer_is_no_slow_request():
    server = ScriptedServer(routes={"/slow": after(SHORT_S * 4, raw(b"done"))})
    async with asyncio.timeout(60), server.serve() as url:
        answer = await _until_closed(
            url, b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        )
    assert answer.endswith(b"done")
