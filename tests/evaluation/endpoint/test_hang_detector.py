from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from serve_eval.client.client import Client
from serve_eval.client.preflight import short
from serve_eval.errors import EndpointError
from serve_eval.evaluation.hang_detector import HangDetector, ProbedServer
from serve_eval.schema import Endpoint, Failure, Limits, Request, Response, SamplingParams
from tests.scripted_server import (
    HttpRequest,
    Reply,
    Responder,
    ScriptedServer,
    answer,
    fail,
    stall,
    stream,
    when,
)

SHORT_S, LONG_S = 0.4, 2.0
"""Time limits in seconds: for requests that are never answered, and for answers that must arrive in
time even on a busy machine.
"""
LONG = Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=100))
AT_ONCE, HANG = answer("1"), stall()


def is_short(request: HttpRequest) -> bool:
    """Return True if a request only checks if the server hangs."""
    return request.max_tokens < 10


def late() -> Responder:
    """Answer nothing until the probe arrives."""
    asked = asyncio.Event()

    def reply(request: HttpRequest) -> Reply:
        if is_short(request):
            asked.set()
        return when(asked, AT_ONCE)

    return reply


def ping(request: HttpRequest) -> Reply:
    """Start every stream immediately and send comments forever; never answer a short request."""

    async def pings() -> AsyncGenerator[bytes]:
        while True:
            yield b": ping\n\n"
            await asyncio.sleep(0.02)

    return stream(pings()) if request.body.get("stream") else stall()


def run(
    *responders: Responder,
    stall_s: float,
    log: Path | None = None,
    stream: bool = False,
) -> tuple[list[Response | Failure], list[str]]:
    """Send four long requests through the first server while the hang detector watches.

    The first server is the front end of the others. Also return the messages.
    """
    told: list[str] = []
    limits = Limits(stall_timeout_s=stall_s, sample_timeout_s=60, stream=stream)
    once = replace(limits, max_attempts=1, sample_timeout_s=stall_s, stream=False)

    async def main() -> list[Response | Failure]:
        async with AsyncExitStack() as stack:
            servers = [
                ScriptedServer(responder, paths=["/v1/completions"]) for responder in responders
            ]
            urls = [await stack.enter_async_context(server.serve()) for server in servers]
            clients = [partial(Client, Endpoint(base_url=url), once) for url in urls]
            asked = [
                ProbedServer(f"server_{i}", client, question(), log)
                for i, client in enumerate(clients)
            ]
            client = await stack.enter_async_context(Client(Endpoint(base_url=urls[0]), limits))
            try:
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(
                        HangDetector(client, asked[0], asked[1:], told.append).watch()
                    )
                    sent = [group.create_task(client.send(LONG)) for _ in range(4)]
                    await asyncio.wait(sent)
                    watch.cancel()
            except* EndpointError as errors:
                assert not client.retries
                raise errors.exceptions[0] from None
            return [task.result() for task in sent]

    return asyncio.run(main()), told


def question() -> Request:
    return short(chat=False, sampling=SamplingParams(max_tokens=1), extra={})


def attempts(results: list[Response | Failure]) -> list[int]:
    assert all(isinstance(result, Response) for result in results)
    return [len(result.attempts) for result in results]


def test_a_server_that_answers_nothing_ends_the_run_before_any_attempt_is_given_up(
    tmp_path: Path,
) -> None:
    (log := tmp_path / "log").write_text("loading\nstuck in all_reduce\n")
    began = time.monotonic()
    with pytest.raises(EndpointError) as caught:
        run(HANG, stall_s=SHORT_S, log=log)
    assert time.monotonic() - began > 2 * SHORT_S
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("server_0 hangs: no data for")
    assert rest[-1] == "    stuck in all_reduce"
    assert str(log) in caught.value.hint
    assert caught.value.exit_code == 4


def test_which_of_them_hangs_is_told() -> None:
    with pytest.raises(EndpointError) as caught:
        run(HANG, AT_ONCE, HANG, stall_s=LONG_S)
    first, front, other = str(caught.value).splitlines()
    assert first.startswith("server_2 hangs: no data for")
    assert front == "  server_0 does not answer either"
    assert other.startswith("  server_1 answered a short request after")


def test_a_front_door_that_hangs_alone_is_told_apart() -> None:
    with pytest.raises(
        EndpointError, match=r"(?s)server_0 hangs: .*server_1 answered.*cannot reach each other"
    ):
        run(HANG, AT_ONCE, stall_s=LONG_S)


def test_a_loaded_server_that_answers_late_is_not_hung() -> None:
    """Short requests wait as long as all others."""
    results, told = run(late(), stall_s=LONG_S)
    assert attempts(results) == [1] * 4
    assert [line.split(":")[0] for line in told][:1] == [f"no data for {LONG_S:g} s"]


def test_a_server_that_answers_anything_does_not_hang_whatever_becomes_of_the_probe() -> None:
    """The first probe lets one long request have its answer; all others come at the second."""
    probes, seen = [asyncio.Event(), asyncio.Event()], {True: 0, False: 0}

    def forget_probes(request: HttpRequest) -> Reply:
        place = min(seen[is_short(request)], 1)
        seen[is_short(request)] += 1
        if is_short(request):
            probes[place].set()
            return HANG
        return when(probes[place], AT_ONCE)

    results, told = run(forget_probes, stall_s=SHORT_S)
    assert attempts(results)[0] == 1
    assert {line.split(":")[0] for line in told} == {f"no data for {SHORT_S:g} s"}


def test_comments_that_keep_streams_open_do_not_hide_that_a_server_hangs() -> None:
    with pytest.raises(EndpointError, match="server_0 hangs: no data for"):
        run(ping, stall_s=SHORT_S, stream=True)


@pytest.mark.parametrize("refuses", [False, True])
def test_requests_that_are_lost_by_a_server_that_answers_others_are_asked_again(
    refuses: bool,
) -> None:
    lost = 4

    def lose_some(request: HttpRequest) -> Reply:
        nonlocal lost
        if is_short(request) and refuses:
            return fail(503)
        if not is_short(request) and lost:
            lost -= 1
            return HANG
        return AT_ONCE

    results, told = run(lose_some, stall_s=LONG_S)
    assert attempts(results) == [2] * 4
    assert told[-1] == "all answered: the endpoint is slow but does not hang"


def test_silence_counts_only_while_something_is_awaited() -> None:
    async def main() -> None:
        limits = Limits(stall_timeout_s=LONG_S)
        async with (
            ScriptedServer(AT_ONCE).serve() as url,
            Client(Endpoint(base_url=url), limits) as client,
        ):
            told: list[str] = []
            watch = asyncio.create_task(
                HangDetector(
                    client, ProbedServer("x", lambda: client, question()), notify=told.append
                ).watch()
            )
            for _ in range(2):
                assert isinstance(await client.send(LONG), Response)
                await asyncio.sleep(1.2 * LONG_S)
            assert not told
            watch.cancel()

    asyncio.run(main())
