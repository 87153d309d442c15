"""Test what tunnels carry and how logs of containers are followed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from serve_eval.launchers._kubernetes import logs
from serve_eval.launchers._kubernetes.cluster import connect
from serve_eval.launchers._kubernetes.services import read_pod
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


DAY = "2026-11-25T18:00:"


def follow(cluster: MockCluster, folder: Path, seconds: float = 0.3) -> list[str]:
    """Follow the log of a pod for some seconds, and return what was said."""
    said: list[str] = []

    async def story() -> None:
        async with (
            connect(None, None, None) as api,
            logs.follow_logs(api, [read_pod(pod("llama-0"))], folder, said.append),
        ):
            await asyncio.sleep(seconds)

    asyncio.run(story())
    return said


def test_lines_are_written_once_when_the_log_breaks_off(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "AGAIN_S", 0.05)
    cluster.add(pod("llama-0"))
    lines = cluster.logs["llama-0"] = [f"{DAY}00.000000000Z one", f"{DAY}00.000000001Z two"]
    cluster.later(0.1, cluster.break_streams)
    cluster.later(0.15, lambda: lines.append(f"{DAY}00.000000002Z three"))
    assert follow(cluster, tmp_path, 0.5) == []
    path = tmp_path / "llama-0-server.log"
    assert path.read_text().splitlines() == lines
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_may_not_be_read_is_told_once(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "AGAIN_S", 0.05)
    cluster.add(pod("llama-0"))
    cluster.forbidden = "log"
    [said] = follow(cluster, tmp_path)
    assert said.startswith("warning: the log of llama-0 cannot be read: log is forbidden")


def test_a_log_that_grows_too_large_ends_with_a_line_that_says_so(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 100)
    cluster.add(pod("llama-0"))
    cluster.logs["llama-0"] = [f"{DAY}{i:02}.000000000Z a line of the log" for i in range(60)]
    follow(cluster, tmp_path)
    text = (tmp_path / "llama-0-server.log").read_text()
    assert len(text) < 10_000
    assert text.endswith("(serve-eval: the log is too large to follow it any further)\n")


def test_no_link_is_followed(cluster: MockCluster, tmp_path: Path) -> None:
    (folder := tmp_path / "logs").mkdir()
    (folder / "llama-0-server.log").symlink_to(tmp_path / "elsewhere")
    cluster.add(pod("llama-0"))
    [said] = follow(cluster, folder, 0.1)
    assert said.startswith("warning: a log could not be written: ")
    assert not (tmp_path / "elsewhere").exists()
