"""Test when requests are sent again: pauses, rates, quotas and patience."""

import asyncio
import random
import time
from collections import deque
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.attempts import outcome, timing
from serve_eval.client.attempts.timing import (
    SAMPLE,
    SLACK_S,
    STALL,
    Patience,
    Quota,
    StartRate,
)
from serve_eval.client.wire_format.reply import Reply
from serve_eval.client.wire_format.response_head import read_pause
from serve_eval.schema import Failure, Limits, Request, Response, SamplingParams
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.client.kept import client_of, kept
from tests.clock import run_counted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WRAPPED = (
    "Internal server error 400, message='Bad Request', url='http://localhost:18001/v1/completions'"
)


@pytest.mark.parametrize(
    ("status", "message", "worth"),
    [
        (400, "", False),
        (401, "", False),
        (403, "", False),
        (404, "", False),
        (422, "", False),
        (408, "", True),
        (429, "", True),
        (500, "Internal server error Cannot connect to host localhost:8003", True),
        (500, "Internal server error ", True),
        (500, WRAPPED, False),
        (502, "", True),
        (503, WRAPPED, True),
        (504, "", True),
        (501, "", False),
    ],
)
def test_only_what_may_pass_by_itself_is_worth_another_attempt(status, message, worth):
    assert outcome.worth_retrying(status, message) is worth


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("100000", outcome.RETRY_AFTER_CAP_S),
        ("Thu, 01 Jan 2026 00:00:07 GMT", 7.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
    ],
)
def test_retry_after_is_honoured_up_to_a_cap(header, seconds):
    pauses = {outcome.pause_s(1, header, random.Random(seed), NOW) for seed in range(20)}
    assert seconds <= min(pauses) < max(pauses) <= seconds + outcome.BASE_S
    assert len(pauses) == 20  # or all clients told to wait would come back at the same moment


@given(
    st.integers(1, 60),
    st.integers(),
    st.sampled_from([None, "", "soon", "-1", "²", "Mon, 01 Jan 0001 00:00:00 +2359", "1e400"]),
)
def test_the_pause_is_jittered_and_bounded(attempt, seed, header):
    pause = outcome.pause_s(attempt, header, random.Random(seed), NOW)
    assert 0.0 <= pause <= min(outcome.CAP_S, outcome.BASE_S * 2 ** (attempt - 1))


async def test_silence_counts_only_while_something_is_expected():
    patience = Patience(sample_s=60.0, stall_s=60.0)
    waits = [patience.begin(time.monotonic()) for _ in range(2)]
    assert patience.silent_s() == 0.0
    for wait in waits:
        patience.expect(
            wait,
            Reply(asyncio.get_running_loop().create_future(), limit=1, now=time.monotonic()),
        )
    await asyncio.sleep(0.02)
    for wait in waits:
        assert patience.silent_s() > 0.0
        patience.expect_no_more(wait, time.monotonic())
        patience.end(wait)
    assert patience.silent_s() == 0.0
    patience.close()


@pytest.mark.parametrize(
    ("now", "held", "over"),
    [
        (109.99, False, None),
        (110.0, False, STALL),
        (110.0, True, None),
        (129.99, False, STALL),
        (130.0, False, SAMPLE),
        (130.0, True, SAMPLE),
    ],
)
async def test_a_wait_is_over_at_its_limits_and_the_limit_of_the_sample_comes_first(
    monkeypatch, now, held, over
):
    """The sample has 30 s from second 100, and each piece of its answer 10 s."""
    clock = [100.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    patience = Patience(sample_s=30.0, stall_s=10.0)
    patience.held = held

    async def wait_for_ever():
        wait = patience.begin(clock[0])
        begun.append(wait)
        future = asyncio.get_running_loop().create_future()
        patience.expect(wait, Reply(future, limit=1, now=clock[0]))
        await future

    begun = []
    task = asyncio.create_task(wait_for_ever())
    await asyncio.sleep(0)
    clock[0] = now
    patience._look()
    patience.close()
    cancelled = bool(task.cancelling())
    task.cancel()
    assert (begun[0].over, cancelled) == (over, over is not None)


@pytest.mark.parametrize(("per_second", "starts", "callers"), [(200.0, 100, 50), (50.0, 20, 1)])
def test_starts_are_spaced_evenly_and_no_more_than_allowed(per_second, starts, callers):
    async def main():
        rate, clock = StartRate(per_second), asyncio.get_running_loop().time
        times = []
        numbers = iter(range(starts))

        async def caller():
            for _ in numbers:
                await rate.wait()
                times.append(clock())

        await asyncio.gather(*(caller() for _ in range(callers)))
        return times

    times = run_counted(main())
    assert times == pytest.approx([i / per_second for i in range(starts)])


def test_after_a_pause_there_is_no_burst():
    async def main():
        rate, clock = StartRate(100.0), asyncio.get_running_loop().time
        await rate.wait()
        await asyncio.sleep(0.3)
        began = clock()
        for _ in range(11):
            await rate.wait()
        return clock() - began

    assert run_counted(main()) >= 0.089


@pytest.mark.parametrize("given_up_at", [0.0, 3.0, 3.25, 5.0])
def test_who_is_cancelled_leaves_the_turn_to_who_comes_next(given_up_at):
    """Regression: an early stop blocked the next task for 4 minutes.

    It happened with 512 requests in flight at 2 starts per second.
    """

    async def main():
        rate, clock = StartRate(2.0), asyncio.get_running_loop().time
        times = []

        async def caller():
            await rate.wait()
            times.append(clock())

        lane = [asyncio.create_task(caller()) for _ in range(512)]
        await asyncio.sleep(given_up_at)
        for task in lane:
            task.cancel()
        given_up = clock()
        await asyncio.gather(*(caller() for _ in range(5)), *lane, return_exceptions=True)
        assert times == sorted(times)
        return given_up, times

    given_up, times = run_counted(main())
    later = [time for time in times if time >= given_up][-5:]
    assert later[0] - given_up <= 0.5
    assert later == pytest.approx([later[0] + i / 2 for i in range(5)], abs=SLACK_S)
    assert all(b - a >= 0.5 - SLACK_S for a, b in pairwise(times))


def test_a_turn_that_was_given_to_someone_cancelled_in_the_same_moment_is_not_lost():
    async def main():
        rate, loop = StartRate(1.0), asyncio.get_running_loop()
        started = []

        async def caller(name):
            await rate.wait()
            started.append((name, loop.time()))

        await rate.wait()
        first = asyncio.create_task(caller("first"))
        second = asyncio.create_task(caller("second"))
        await asyncio.sleep(0)
        # Cancel in the turn of the loop that gives the first start, before its task has run.
        loop.call_at(1.0, first.cancel)
        await asyncio.gather(first, second, return_exceptions=True)
        return started

    [(name, at)] = run_counted(main())
    assert name == "second"
    assert at == 1.0


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
def test_the_head_of_a_reply_names_the_pause(status, head, seconds):
    read = read_pause(status, {name.encode(): value for name, value in head.items()}, NOW)
    assert read == (None if seconds is None else pytest.approx(seconds))


def test_ten_minutes_of_a_quota_never_exceed_it_in_any_minute_of_a_server(
    monkeypatch,
):
    """The server's minutes begin anywhere, and requests take up to half a second to reach it."""

    async def main():
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        shared = [Quota("http://ten-minutes", 30), Quota("http://ten-minutes", 30)]
        times = []
        numbers = iter(range(300))

        async def caller(number):
            for _ in numbers:
                await shared[number % 2].wait()
                times.append(loop.time())

        await asyncio.gather(*(caller(number) for number in range(40)))
        return times

    times = run_counted(main())
    assert 9 * 60.5 <= times[-1] - times[0] < 9 * 60.5 + 2.0
    late = [t + (0.49 if i % 30 < 15 else 0.0) for i, t in enumerate(times)]
    window = deque()
    for arrival in sorted(late):
        window.append(arrival)
        while window[0] <= arrival - 60.0:
            window.popleft()
        assert len(window) <= 30


def _request(number):
    return Request(
        sample_id=str(number), prompt=f"question {number}", sampling=SamplingParams(max_tokens=20)
    )


def _ask(script, limits, samples, notices=None):
    """Return the results of samples that are asked at the same time, and what was received."""

    async def main():
        async with (
            FaultyServer(script) as server,
            kept(client_of(server, limits)) as client,
        ):
            client.liveness.notify = [].append if notices is None else notices.append
            async with asyncio.timeout(20):  # or a client that asks without end would go on
                results = await asyncio.gather(*(client.send(_request(n)) for n in range(samples)))
            return results, server.received

    return asyncio.run(main())


def test_a_client_starts_no_more_than_its_quota(monkeypatch):
    monkeypatch.setattr(timing, "PERIOD_S", 0.4)
    limits = Limits(requests_per_minute=4, sample_timeout_s=0.6, stall_timeout_s=20.0)
    results, received = _ask([act.sound], limits, 12)
    assert all(isinstance(result, Response) for result in results)  # waiting is not their time
    times = sorted(request.at_s for request in received)
    assert times[4] - times[3] > 0.2
    assert times[8] - times[4] > 0.2
    assert times[3] - times[0] < 0.2  # a burst is allowed


def _quota_server(size, window_s):
    """Return a script that answers `size` requests in a window of its own clock."""
    began, answered = time.monotonic(), {}

    def script(request):
        since = time.monotonic() - began
        window = int(since / window_s)
        if answered.get(window, 0) == size:
            left = window_s * (window + 1) - since
            return act.refuses("429 Too Many Requests", "slow down", retry_after=f"{left:.3f}")
        answered[window] = answered.get(window, 0) + 1
        return act.sound

    return script


def test_samples_that_a_spent_quota_refuses_are_answered_later(
    monkeypatch,
):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.01)
    limits = Limits(max_attempts=2, retry_budget=4)
    results, received = _ask(_quota_server(5, 0.25), limits, 40)
    assert all(isinstance(result, Response) for result in results)
    assert max(len(result.attempts) for result in results) > 3
    assert len(received) < 40 * 8 / 2 + 40


def test_a_server_that_refuses_everybody_is_not_asked_without_end():
    spent = act.refuses("429 Too Many Requests", "no", retry_after="0")
    results, received = _ask([spent], Limits(max_attempts=3), 2)
    assert [result.status for result in results if isinstance(result, Failure)] == [429, 429]
    assert len(received) == 6


async def test_after_the_last_request_of_a_quota_nobody_starts_until_its_reset():
    async def last(turn):
        named = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "400ms"}
        await turn.write(act.http(act.answer(turn.request), headers=named))

    async with (
        FaultyServer([last, act.sound]) as server,
        kept(client_of(server)) as client,
    ):
        await client.send(_request(1))
        await asyncio.gather(*(client.send(_request(number)) for number in range(2, 6)))
        received = server.received
    assert min(request.at_s for request in received[1:]) - received[0].at_s > 0.38


def test_a_long_pause_is_reported_once():
    notices = []
    spent = act.refuses("429 Too Many Requests", "no", retry_after="90")
    _ask([spent], Limits(sample_timeout_s=0.3), 3, notices)
    assert notices == ["the endpoint's quota is spent: no request starts for 90 s"]
