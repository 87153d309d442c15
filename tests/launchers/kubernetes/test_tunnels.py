"""Test what tunnels carry, and that one that breaks never looks like an end in good order."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from serve_eval.launchers._kubernetes.cluster import connect
from serve_eval.launchers._kubernetes.tunnels import open_tunnels
from tests.launchers.kubernetes.mock_cluster import MockCluster, Serving, pod

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MANY = bytes(range(256)) * 16384  # 4 MiB


def talk(cluster: MockCluster, serving: Serving, story: Talk, count: int = 1) -> list[str]:
    """Let a story talk with a pod's server, over `count` tunnels at once. Return what was said."""
    cluster.add(pod("llama-0"))
    cluster.serve_raw("llama-0", serving)
    said: list[str] = []

    async def one(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.wait_for(story(reader, writer), 20)
        finally:
            writer.close()

    async def all_of_them() -> None:
        async with (
            connect(None, None, None) as api,
            open_tunnels(api, {"llama-0": 8000}, frozenset, said.append) as (port, _),
        ):
            await asyncio.gather(*(one(port) for _ in range(count)))

    asyncio.run(all_of_them())
    return said


async def _echo_digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read slowly, answer with the digest and then with many bytes, and close."""
    received = bytearray()
    while len(received) < len(MANY):
        received += await reader.read(100_000)
        await asyncio.sleep(0)
    writer.write(hashlib.sha256(received).digest() + MANY)
    await writer.drain()
    writer.close()


def test_many_bytes_arrive_whole_both_ways_and_the_end_is_seen(cluster: MockCluster) -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MANY)
        await writer.drain()
        assert await reader.readexactly(32) == hashlib.sha256(MANY).digest()
        received = bytearray()
        while piece := await reader.read(50_000):
            received += piece
            await asyncio.sleep(0)
        assert received == MANY

    assert talk(cluster, _echo_digest, story, count=3) == []


def test_a_slow_client_slows_the_server(cluster: MockCluster) -> None:
    """A response of any length needs a bounded amount of memory on its way."""
    written = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.read(1)
        for _ in range(64):
            writer.write(MANY)
            await writer.drain()
            written += len(MANY)

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read(10)
        await asyncio.sleep(0.7)
        assert 0 < written < 16 * len(MANY)

    talk(cluster, pour, story)


def test_a_tunnel_that_breaks_resets_the_connection(cluster: MockCluster) -> None:
    """A body that ends with its connection would look complete after an orderly end."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nthe first half")
        await asyncio.sleep(10)

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        assert (await reader.read(100)).endswith(b"the first half")
        await asyncio.to_thread(cluster.break_tunnels)
        try:
            ended = await reader.read(100)
        except ConnectionResetError:
            return
        raise AssertionError(f"it looks like the end of the body: {ended!r}")

    said = talk(cluster, half, story)
    assert said == [
        "warning: a connection to pod llama-0 broke: the connection to the API server ended"
    ]


def test_an_error_of_the_cluster_resets_the_connection(cluster: MockCluster) -> None:
    cluster.error_of["llama-0"] = "error forwarding port 8000: lost connection to pod"

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ended = await reader.read(100)
        except ConnectionResetError:
            return
        raise AssertionError(f"it looks like the end of the body: {ended!r}")

    [said] = talk(cluster, _echo_digest, story)
    assert said.endswith("broke: error forwarding port 8000: lost connection to pod")


def test_a_client_that_goes_away_ends_the_connection_of_the_server(cluster: MockCluster) -> None:
    """The server then stops computing an answer that nobody reads."""
    ended = asyncio.Event()

    async def notice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass
        ended.set()

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await writer.drain()
        writer.close()
        for _ in range(200):
            if ended.is_set():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the server still waits")

    assert talk(cluster, notice, story) == []
