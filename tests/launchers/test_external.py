from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import external
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.schema import Endpoint, LaunchContext, ServerInfo

CONTEXT = LaunchContext(model="a/b", log_dir=Path("logs"))


async def launched(base_url: str, ready_timeout_s: float = 0.0) -> Endpoint:
    async with external.launch(
        CONTEXT, external.ExternalOptions(base_url=base_url, ready_timeout_s=ready_timeout_s)
    ) as endpoint:
        return endpoint


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_nothing_is_started() -> None:
    assert external.commands(CONTEXT, external.ExternalOptions(base_url="host:8000")) == []


def test_the_address_is_yielded_as_given_without_a_look_at_it() -> None:
    endpoint = asyncio.run(launched("host.invalid:8000"))
    assert (endpoint.base_url, endpoint.model) == ("host.invalid:8000", "a/b")
    assert endpoint.info == ServerInfo(launcher="external")


def test_any_http_answer_means_ready() -> None:
    async def story() -> Endpoint:
        async with serve(SimulatorConfig()) as base_url:
            address = base_url.removeprefix("http://")  # GET of it is a 404
            return await launched(address, ready_timeout_s=5)

    assert asyncio.run(story()).base_url.startswith("127.0.0.1:")


def test_a_server_that_comes_later_is_waited_for() -> None:
    async def story() -> None:
        port = free_port()
        waiting = asyncio.create_task(launched(f"http://127.0.0.1:{port}/v1", ready_timeout_s=10))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        async with serve(SimulatorConfig(), port=port):
            await waiting

    asyncio.run(story())


def test_a_port_where_nobody_listens_is_an_error_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"does not answer within 0\.3 s"):
        asyncio.run(launched(f"http://127.0.0.1:{free_port()}/v1", ready_timeout_s=0.3))
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/v1", "http://127.0.0.1:port/v1"])
def test_what_is_no_address_is_an_error_at_once(address: str) -> None:
    with pytest.raises(LaunchError, match="is not an address"):
        asyncio.run(launched(address, ready_timeout_s=60))
