"""Test that a client keeps to quotas, those that a user names and those that a server enforces."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from datetime import UTC, datetime

import pytest

from serve_eval.client.attempts import quota
from serve_eval.client.attempts.quota import Quota
from serve_eval.client.client import Client
from serve_eval.client.wire_format.response_head import read_pause
from serve_eval.schema import Endpoint, Failure, Limits, Request, Response, SamplingParams
from tests.client import faulty_server as act
from tests.client.faulty_server import Act, FaultyServer, Received, Script, Turn
from tests.client.kept import kept
from tests.clock import run_counted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPENT = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}


@pytest.mark.parametrize(
    ("status", "head", "seconds"),
    [
        (429, {}, None),
        (429, {"retry-after": "7"}, 7.0),
        (429, {"retry-after": "1.5"}, 1.5),
        (429, {"retry-after": "Thu, 01 Jan 2026 00:00:07 GMT"}, 7.0),
        (429, {"retry-after": "soon"}, None),
        (429, {"retry-after": "soon", **SPENT}, 360.0),
        (429, {"retry-after-ms": "250"}, 0.25),
        (429, SPENT, 360.0),
        (200, SPENT, 360.0),
        (200, {"retry-after": "7"}, None),
        (200, {**SPENT, "x-ratelimit-remaining-requests": "1"}, None),
        (200, {**SPENT, "x-ratelimit-reset-requests": "12ms"}, 0.012),
        (200, {**SPENT, "x-ratelimit-reset-requests": "1h2m59.56s"}, 3779.56),
        (200, {**SPENT, "x-ratelimit-reset-requests": "10"}, 10.0),
        (200, {**SPENT, "x-ratelimit-reset-requests": "six minutes"}, None),
        (200, {**SPENT, "x-ratelimit-reset-requests": "-1"}, None),
        (200, {"x-ratelimit-remaining-requests": "0"}, None),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2s"}, 2.0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225630"}, 30.0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225630000"}, 30.0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225599"}, 0.0),
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "5"}, 5.0),
        (
            200,
            {
                **SPENT,
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "3s",
            },
            3.0,
        ),
    ],
)
def test_the_head_of_a_reply_names_the_pause(
    status: int, head: dict[str, str], seconds: float | None
) -> None:
    read = read_pause(status, {name.encode(): value for name, value in head.items()}, NOW)
    assert read == (None if seconds is None else pytest.approx(seconds))


def test_ten_minutes_of_a_quota_never_exceed_it_in_any_minute_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server's minutes begin anywhere, and requests take up to half a second to reach it."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        shared = [Quota("http://ten-minutes", 30), Quota("http://ten-minutes", 30)]
        times: list[float] = []
        numbers = iter(range(300))

        async def caller(number: int) -> None:
            for _ in numbers:
                await shared[number % 2].wait()
                times.append(loop.time())

        await asyncio.gather(*(caller(number) for number in range(40)))
        return times

    times = run_counted(main())
    assert 9 * 60.5 <= times[-1] - times[0] < 9 * 60.5 + 2.0
    late = [t + (0.49 if i % 30 < 15 else 0.0) for i, t in enumerate(times)]
    window: deque[float] = deque()
    for arrival in sorted(late):
        window.append(arrival)
        while window[0] <= arrival - 60.0:
            window.popleft()
        assert len(window) <= 30


def _request(number: int) -> Request:
    return Request(
        sample_id=str(number), prompt=f"question {number}", sampling=SamplingParams(max_tokens=20)
    )


def _ask(
    script: Script, limits: Limits, samples: int, notices: list[str] | None = None
) -> tuple[list[Response | Failure], list[Received]]:
    """Return the results of samples that are asked at the same time, and what was received."""

    async def main() -> tuple[list[Response | Failure], list[Received]]:
        async with (
            FaultyServer(script) as server,
            kept(Client(Endpoint(base_url=server.base_url), limits)) as client,
        ):
            client.liveness.notify = [].append if notices is None else notices.append
            async with asyncio.timeout(20):  # or a client that asks without end would go on
                results = await asyncio.gather(*(client.send(_request(n)) for n in range(samples)))
            return results, server.received

    return asyncio.run(main())


def test_a_client_starts_no_more_than_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "PERIOD_S", 0.4)
    limits = Limits(requests_per_minute=4, sample_timeout_s=0.6, stall_timeout_s=20.0)
    results, received = _ask([act.sound], limits, 12)
    assert all(isinstance(result, Response) for result in results)  # waiting is not their time
    times = sorted(request.at_s for request in received)
    assert times[4] - times[3] > 0.2
    assert times[8] - times[4] > 0.2
    assert times[3] - times[0] < 0.2  # a burst is allowed


def _quota_server(size: int, window_s: float) -> Script:
    """Return a script that answers `size` requests in a window of its own clock."""
    began, answered = time.monotonic(), dict[int, int]()

    def script(request: Received) -> Act:
        since = time.monotonic() - began
        window = int(since / window_s)
        if answered.get(window, 0) == size:
            left = window_s * (window + 1) - since
            return act.refuses("429 Too Many Requests", "slow down", retry_after=f"{left:.3f}")
        answered[window] = answered.get(window, 0) + 1
        return act.sound

    return script


def test_samples_that_a_spent_quota_refuses_are_answered_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.01)
    limits = Limits(max_attempts=2, retry_budget=4)
    results, received = _ask(_quota_server(5, 0.25), limits, 40)
    assert all(isinstance(result, Response) for result in results)
    assert max(len(result.attempts) for result in results) > 3
    assert len(received) < 40 * 8 / 2 + 40


def test_a_server_that_refuses_everybody_is_not_asked_without_end() -> None:
    spent = act.refuses("429 Too Many Requests", "no", retry_after="0")
    results, received = _ask([spent], Limits(max_attempts=3), 2)
    assert [result.status for result in results if isinstance(result, Failure)] == [429, 429]
    assert len(received) == 6


def test_after_the_last_request_of_a_quota_nobody_starts_until_its_reset() -> None:
    async def last(turn: Turn) -> None:
        named = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "400ms"}
        await turn.write(act.http(act.answer(turn.request), headers=named))

    async def main() -> list[Received]:
        async with (
            FaultyServer([last, act.sound]) as server,
            kept(Client(Endpoint(base_url=server.base_url), Limits())) as client,
        ):
            await client.send(_request(1))
            await asyncio.gather(*(client.send(_request(number)) for number in range(2, 6)))
            return server.received

    received = asyncio.run(main())
    assert min(request.at_s for request in received[1:]) - received[0].at_s > 0.38


def test_a_long_pause_is_reported_once() -> None:
    notices: list[str] = []
    spent = act.refuses("429 Too Many Requests", "no", retry_after="90")
    _ask([spent], Limits(sample_timeout_s=0.3), 3, notices)
    assert notices == ["the endpoint's quota is spent: no request starts for 90 s"]
