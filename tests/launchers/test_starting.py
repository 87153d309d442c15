"""Test servers that listen while they load: the launch waits and says so."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import external, trtllm
from serve_eval.launchers._fleet import readiness
from serve_eval.launchers._fleet.loading import says_so
from serve_eval.launchers._standin.serving import HEADERS
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from tests.scripted_server import EVERY_PATH, ScriptedServer, answer, fail

CONTEXT = LaunchContext(model="m", log_dir=Path("logs"))


class _Reply:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (503, HEADERS, True),
        (503, {"x-trtllm-server-state": " Starting"}, True),
        (503, {"x-trtllm-server-state": "ready"}, False),
        (503, {}, False),
        (200, HEADERS, False),
    ],
)
def test_only_a_503_with_that_header_says_so(
    status: int, headers: dict[str, str], said: bool
) -> None:
    assert says_so(_Reply(status, headers)) is said


STARTING = fail(503, headers=HEADERS)


def _server(left: float) -> ScriptedServer:
    """Return a server that reports its start `left` times, on any route."""
    return ScriptedServer(
        lambda request: STARTING if request.number <= left else fail(404), paths=EVERY_PATH
    )


@pytest.mark.parametrize("left", [0, 2])
def test_an_endpoint_that_runs_already_is_waited_for(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "POLL_S", 0.01)

    async def story() -> None:
        async with (
            _server(left).serve() as url,
            external.launch(CONTEXT, external.ExternalOptions(base_url=url, ready_timeout_s=20.0)),
        ):
            pass

    asyncio.run(story())


def test_an_endpoint_that_goes_on_starting_is_no_endpoint() -> None:
    async def story() -> None:
        async with (
            _server(math.inf).serve() as url,
            external.launch(CONTEXT, external.ExternalOptions(base_url=url, ready_timeout_s=0.1)),
        ):
            pass

    with pytest.raises(
        LaunchError, match=r"does not answer within 0\.1 s: it reports that it is starting"
    ):
        asyncio.run(story())


@pytest.mark.slow
def test_a_launched_server_says_that_it_is_starting(
    context: LaunchContext,
    said: list[str],
    standin: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "TELL_S", 0.2)
    standin("main", STANDIN_LOAD_S="1.5", STANDIN_STARTING="1")

    async def story() -> None:
        options = registry.check_options(
            trtllm.launch, {"gpus": [0], "ready_timeout_s": 30.0}, "launcher"
        )
        async with trtllm.launch(context, trtllm.TrtllmOptions(**options)):
            pass

    asyncio.run(story())
    assert any(", it reports that it is starting; its log: " in line for line in said)


def test_the_first_completion_is_not_given_up_while_the_front_door_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is for an engine that hangs."""
    monkeypatch.setattr(readiness, "POLL_S", 0.02)
    until = time.monotonic() + 0.4

    server = ScriptedServer(lambda request: STARTING if time.monotonic() < until else answer("x"))

    async def story(start_timeout_s: float) -> None:
        import httpx

        from serve_eval.launchers._trtllm.command_line import Place, Server

        async with server.serve() as url, httpx.AsyncClient(trust_env=False) as client:
            place = Place(host="127.0.0.1", port=int(url.split(":")[2].removesuffix("/v1")))
            front = Server(name="front", argv=("x",), probe=("x",), place=place)
            await readiness._wait_for_answer(
                client, [], front, "m", 0.2, said.append, start_timeout_s=start_timeout_s
            )

    said: list[str] = []
    asyncio.run(story(20.0))
    assert said[-1].startswith("front: the first completion took ")
