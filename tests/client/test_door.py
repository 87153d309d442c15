"""A refused connection: is the server gone, or was it only late?"""

from __future__ import annotations

import asyncio
import socket

import pytest

from serve_eval.client import door as module
from serve_eval.client.door import Door
from serve_eval.errors import EndpointError


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_an_address_that_refuses_for_seconds_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GONE_S", 0.3)
    monkeypatch.setattr(module, "PROBE_S", 0.1)
    port = _free_port()

    async def main(host: str) -> None:
        door = Door()
        door.refused(host, port)
        async with asyncio.timeout(10):
            await door.watch()

    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(EndpointError, match=f"nobody listens at {host}:{port} any more"):
            asyncio.run(main(host))


def test_a_server_that_listens_again_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GONE_S", 1.0)
    monkeypatch.setattr(module, "PROBE_S", 0.1)
    port = _free_port()

    async def main() -> None:
        door = Door()
        door.refused("127.0.0.1", port)
        watching = asyncio.create_task(door.watch())
        await asyncio.sleep(0.3)
        async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port):
            await asyncio.sleep(1.2)
            assert not watching.done()
            watching.cancel()

    asyncio.run(main())


def test_a_name_that_cannot_be_resolved_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GONE_S", 0.1)

    async def main() -> bool:
        door = Door()
        door.refused("model.invalid", 80)
        watching = asyncio.create_task(door.watch())
        await asyncio.sleep(0.5)
        watching.cancel()
        return watching.done() and not watching.cancelled()

    assert not asyncio.run(main())
