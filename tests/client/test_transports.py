"""Test that no answer becomes that to another request, and the times of a stream."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.client.client import Client
from serve_eval.schema import Endpoint, Limits, Request, Response, SamplingParams
from tests.attack.hostile import BREAKING, case_of, question, said
from tests.client import faulty_server as act
from tests.client.faulty_server import Act, FaultyServer, Turn
from tests.client.kept import Heard, kept
from tests.client.test_steps import ATTACKS, check, run

LIMITS = Limits(
    stall_timeout_s=0.5,
    sample_timeout_s=1.5,
    max_attempts=2,
    max_response_bytes=100_000,
    stream=True,
)
BEHIND_NEXT = [name for name in ATTACKS if "behind the next request" in name and "400" not in name]


def _request(case: int) -> Request:
    return Request(
        sample_id=str(case), prompt=question(case), sampling=SamplingParams(max_tokens=20)
    )


@pytest.mark.parametrize("name", BEHIND_NEXT)
def test_an_answer_too_many_before_the_next_one_swaps_nothing(name: str, tmp_path: Path) -> None:
    check(run(ATTACKS[name], tmp_path, count=60, in_flight=2))


async def _swapped(fault: Act) -> list[str]:
    """Return the kept answers that belong to other requests."""
    heard = Heard()
    async with (
        FaultyServer([fault, act.sound]) as server,
        kept(Client(Endpoint(base_url=server.base_url), LIMITS), heard) as client,
    ):
        results = [await client.send(_request(case)) for case in range(4)]
        await client.settle()
    wrong = []
    for case, result in enumerate(results):
        if isinstance(result, Response) and result.text.strip() != said(case):
            last = result.attempts[-1]
            if not heard.out or last.turn <= heard.in_step.get(last.connection, 1):
                wrong.append(result.text)
    return wrong


AT_ONCE = [
    name for name in BREAKING if not name.startswith("twice") and name != "an unasked error"
] + ["twice at once"]
"""Ways to break an answer whose result does not depend on when a copy arrives."""


def test_no_broken_answer_becomes_that_to_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act, "echo", lambda request: said(case_of(request) or 0))

    async def main() -> dict[str, list[str]]:
        swapped = await asyncio.gather(*(_swapped(BREAKING[name]) for name in AT_ONCE))
        return {name: texts for name, texts in zip(AT_ONCE, swapped, strict=True) if texts}

    assert asyncio.run(main()) == {}


def test_times_of_a_stream_are_those_of_its_tokens() -> None:
    async def timed(turn: Turn) -> None:
        await turn.write(act.STREAM_HEAD)
        await asyncio.sleep(0.2)
        await turn.write(act.chunked(act.chunk(turn.request, "one")))
        await asyncio.sleep(0.2)
        await turn.write(
            act.chunked(act.chunk(turn.request, " two"))
            + act.chunked(act.chunk(turn.request, "", "stop"))
        )
        await asyncio.sleep(0.2)
        await turn.write(act.chunked(act.DONE) + act.LAST_CHUNK)

    async def main() -> Response:
        limits = replace(LIMITS, stall_timeout_s=20.0, sample_timeout_s=20.0)
        async with (
            FaultyServer([timed]) as server,
            Client(Endpoint(base_url=server.base_url), limits) as client,
        ):
            result = await client.send(_request(1))
            assert isinstance(result, Response)
            return result

    result = asyncio.run(main())
    assert result.ttft_s is not None
    assert 0.19 < result.ttft_s < 0.39
    assert result.latency_s > 0.59
