"""Test the client with a server that misbehaves: the result of every fault, and its record."""

import asyncio
import gc
import json
import random
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import cast

import pytest
import uvloop

from serve_eval.client.attempts import outcome
from serve_eval.client.client import Client
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Message,
    Request,
    Response,
    SamplingParams,
)
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.client.kept import client_of, kept

STREAM = [False, True] if "stream" in Limits.__dataclass_fields__ else [False]
"""Requests with and without event streams; the server answers as its act says."""
SILENCE = (act.silent, act.silent_after_the_head, act.stalls)

HTTP, TIMEOUT = FailureKind.HTTP_ERROR, FailureKind.TIMEOUT
GONE, INVALID = FailureKind.DISCONNECTED, FailureKind.INVALID_RESPONSE
WRAPPED_400 = (
    b"""{"detail": "Internal server error 400, message='Bad Request', """
    b"""url='http://localhost:1/v1/completions'"}"""
)

FAULTS = {
    "closed without an answer": (act.hangs_up, GONE, None),
    "reset without an answer": (act.resets, GONE, None),
    "reset before the body": (act.resets_before_the_body, GONE, 200),
    "reset in the body": (act.resets_in_the_body, GONE, 200),
    "closed in the body": (act.closes_in_the_body, GONE, 200),
    "closed in a stream": (act.closes_in_the_stream, GONE, 200),
    "no byte": (act.silent, TIMEOUT, None),
    "no byte of the body": (act.silent_after_the_head, TIMEOUT, 200),
    "stalled stream": (act.stalls, TIMEOUT, 200),
    "500": (act.refuses("500 Internal Server Error", "oh"), HTTP, 500),
    "500 with an empty body": (act.replies(b"", "500 Internal Server Error"), HTTP, 500),
    "429": (act.refuses("429 Too Many Requests", "busy"), HTTP, 429),
    "429 with Retry-After: 0": (
        act.refuses("429 Too Many Requests", "busy", retry_after="0"),
        HTTP,
        429,
    ),
    "429 with a Retry-After that says nothing": (
        act.refuses("429 Busy", "busy", retry_after="soon"),
        HTTP,
        429,
    ),
    "503 of a proxy": (
        act.replies(b"<html><title>503</title>", "503 Busy", content_type="text/html"),
        HTTP,
        503,
    ),
    "408": (act.refuses("408 Request Timeout", "slow"), HTTP, 408),
    "cut JSON": (act.cut_json, INVALID, 200),
    "text called JSON": (act.replies(b"the answer to 1"), INVALID, 200),
    "HTML": (act.replies(b"<html><title>Welcome</title>", content_type="text/html"), INVALID, 200),
    "an empty body": (act.replies(b""), INVALID, 200),
    "204": (act.replies(b"", "204 No Content"), INVALID, 204),
    "no choices": (act.replies(b'{"choices": []}'), INVALID, 200),
    "null and no finish_reason": (act.says(None, None), INVALID, 200),
    "an empty text and no finish_reason": (act.says("", None), INVALID, 200),
    "an error object in a 200": (
        act.replies(b'{"error": {"message": "out of memory"}}'),
        INVALID,
        200,
    ),
    "an error object in a stream": (
        act.replies(
            b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n',
            content_type="text/event-stream",
        ),
        INVALID,
        200,
    ),
    "a stream without a finish_reason": (act.ends_the_stream_early, INVALID, 200),
    "two Content-Lengths": (act.two_lengths, INVALID, None),
    "a header of 100 KB": (act.long_header, INVALID, None),
    "no status line": (act.sends(b"SSH-2.0-OpenSSH_9.6\r\n"), INVALID, None),
    "bytes that are no text": (act.sends(bytes(range(256))), INVALID, None),
}
"""Act, and the kind and status that each attempt shows. All are worth another attempt."""

REFUSALS = {
    "400": (act.refuses("400 Bad Request", "no"), 400),
    "404": (act.replies(b'{"detail": "Not Found"}', "404 Not Found"), 404),
    "500 that wraps a 400": (act.replies(WRAPPED_400, "500 Internal Server Error"), 500),
    "501": (act.refuses("501 Not Implemented", "no"), 501),
    "redirect": (act.replies(b"", "307 Temporary Redirect", location="http://127.0.0.1:9/"), 307),
}

SOUND = {
    "JSON": act.sound,
    "a stream": act.sound_stream,
    "JSON as text/plain": act.answers_as("text/plain"),
    "JSON as nothing known": act.answers_as("x"),
    "JSON that ends with its connection": act.without_length,
    "JSON after 100 and 103": act.informs_first,
    "JSON, gzipped": act.gzipped,
}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    monkeypatch.setattr("serve_eval.client.wire_format.reply.AFTER_DONE_S", 0.2)
    monkeypatch.setattr("serve_eval.client.wire_format.reply.AFTER_FINISH_S", 0.2)


def _limits(stream, **limits):
    streaming = {"stream": True} if stream else {}
    return Limits(
        **{
            "stall_timeout_s": 20.0,
            "sample_timeout_s": 40.0,
            "max_attempts": 3,
            **streaming,
            **limits,
        }
    )


def _request(number=1):
    """Return a completion request for an odd number, a chat request for an even one."""
    question = f"question {number}"
    prompt = question if number % 2 else (Message(role="user", content=question),)
    return Request(sample_id=str(number), prompt=prompt, sampling=SamplingParams(max_tokens=20))


def _right(number=1):
    return f"the answer to question {number}"


def _with(script, limits, body):
    """Run `body` on the event loop that runs use."""

    async def main():
        async with (
            FaultyServer(script) as server,
            kept(client_of(server, limits)) as client,
        ):
            return await body(client, server)

    return uvloop.run(main())


def _send(script, limits, requests=1):
    """Send requests one after the other and check that every attempt is recorded.

    Return the results and what the server received.
    """

    async def body(client, server):
        results = [await client.send(_request(number)) for number in range(1, requests + 1)]
        return results, server.received

    results, received = _with(script, limits, body)
    assert [attempt.request_id for attempt in _attempts(results)] == [
        request.request_id for request in received
    ]
    return results, received


def _attempts(results):
    return [attempt for result in results for attempt in result.attempts]


def _seen(result):
    return [(attempt.failure, attempt.status) for attempt in result.attempts]


async def _all(client, *, samples, in_flight):
    """Return the results for the numbers 0, 1, ... with at most `in_flight` requests at a time."""
    gate = asyncio.Semaphore(in_flight)

    async def one(number):
        async with gate:
            return await client.send(_request(number))

    return await asyncio.gather(*map(one, range(samples)))


def _patience(fault, seconds):
    return {"stall_timeout_s": seconds} if fault in SILENCE else {}


# One fault at a time


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_stays_has_its_kind_in_every_attempt(name, stream):
    fault, kind, status = FAULTS[name]
    (result,), received = _send([fault], _limits(stream, max_attempts=2, **_patience(fault, 0.1)))
    assert isinstance(result, Failure)
    assert (result.kind, result.status, result.retryable) == (kind, status, True)
    assert _seen(result) == [(kind, status)] * 2
    assert {request.path for request in received} == {"/v1/completions"}
    assert received[0].body == received[1].body


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_is_on_record_beside_the_answer(name, stream):
    fault, kind, status = FAULTS[name]
    (result,), _ = _send(
        act.fails_then(1, fault, act.sound), _limits(stream, **_patience(fault, 0.3))
    )
    assert isinstance(result, Response)
    assert (result.text, result.finish_reason) == (_right(), "stop")
    assert _seen(result) == [(kind, status), (None, 200)]


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_asked_once(name, stream):
    refusal, status = REFUSALS[name]
    (result,), received = _send([refusal], _limits(stream))
    assert isinstance(result, Failure)
    assert (result.kind, result.status, result.retryable) == (HTTP, status, False)
    assert (_seen(result), len(received)) == ([(HTTP, status)], 1)


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_answer_is_read_in_whatever_it_comes(name, number, stream):
    async def body(client, server):
        return await client.send(_request(number))

    result = _with([SOUND[name]], _limits(stream), body)
    assert isinstance(result, Response)
    assert (result.text, result.finish_reason) == (_right(number), "stop")
    assert _seen(result) == [(None, 200)]


ENDS = {
    "reset after the finish_reason": act.resets_after_the_finish,
    "silence after [DONE]": act.silent_after_done,
    "silence after the finish_reason": act.silent_after_the_finish,
    "comments for ever": act.then_endless(lambda request: b": still here\n\n"),
    "events for ever": act.then_endless(lambda request: act.chunk(request, "more")),
}


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("name", ENDS)
def test_a_stream_that_is_whole_counts_however_it_ends(name, stream):
    limits = _limits(stream, stall_timeout_s=5.0, max_response_bytes=1_000_000)
    results, received = _send([ENDS[name], act.sound], limits, requests=2)
    assert [result.text for result in results if isinstance(result, Response)] == [
        _right(1),
        _right(2),
    ]
    assert [_seen(result) for result in results] == [[(None, 200)]] * 2
    assert received[0].connection != received[1].connection


@pytest.mark.skipif(True not in STREAM, reason="the client does not ask for streams")
def test_an_answer_that_a_stream_lost_is_asked_for_without_one():
    (result,), received = _send([act.loses_the_stream], _limits(True))
    assert isinstance(result, Response)
    assert (result.text, _seen(result)) == (_right(), [(INVALID, 200), (None, 200)])
    assert [request.body.get("stream", False) for request in received] == [True, False]


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("text", [None, ""])
def test_a_null_content_with_a_finish_reason_is_an_empty_answer(text, stream):
    (result,), _ = _send([act.says(text, "length")], _limits(stream))
    assert isinstance(result, Response)
    assert (result.text, result.finish_reason, _seen(result)) == ("", "length", [(None, 200)])


def test_a_server_that_is_busy_for_a_while_is_asked_until_it_answers():
    script = act.fails_then(3, act.refuses("503 Service Unavailable", "not ready"), act.sound)
    (result,), received = _send(script, _limits(False, max_attempts=4))
    assert isinstance(result, Response)
    assert _seen(result) == [(HTTP, 503)] * 3 + [(None, 200)]
    assert len(received) == 4


def test_a_switch_to_another_protocol_is_no_answer():
    (result,), received = _send(
        [act.switches_protocols], _limits(False, stall_timeout_s=0.2, max_attempts=2)
    )
    assert isinstance(result, Failure)
    assert (result.retryable, len(received)) == (True, 2)
    assert {attempt.failure for attempt in result.attempts} <= {GONE, INVALID, TIMEOUT}


async def test_a_server_that_comes_back_is_found_again(monkeypatch):
    server = FaultyServer([act.sound], listening=False)
    listening = []

    def pause(attempt, *_):
        if attempt == 2:
            listening.append(asyncio.create_task(server.listen()))
        return 0.05

    monkeypatch.setattr(outcome, "pause_s", pause)
    async with (
        server,
        kept(client_of(server, _limits(False))) as client,
    ):
        result = await client.send(_request())
    assert isinstance(result, Response)
    assert _seen(result) == [(GONE, None), (GONE, None), (None, 200)]
    assert [request.request_id for request in server.received] == [result.attempts[-1].request_id]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"]
)
def test_a_server_that_speaks_first_gets_no_more_connections_than_attempts(greeting, loop):
    async def main():
        server = FaultyServer([act.hangs_up], greeting=greeting)
        limits = _limits(False, sample_timeout_s=2.0)
        async with server, client_of(server, limits) as client:
            return await client.send(_request()), server

    result, server = pytest.importorskip(loop).run(main())
    assert isinstance(result, Failure)
    assert result.retryable
    assert {attempt.failure for attempt in result.attempts} <= {GONE, INVALID, HTTP}
    assert 1 <= server.connections <= len(result.attempts) == 3


async def test_a_server_that_refuses_connections_sees_nothing():
    server = FaultyServer([act.sound], listening=False)
    async with (
        server,
        kept(client_of(server, _limits(False))) as client,
    ):
        result = await client.send(_request())
    assert isinstance(result, Failure)
    assert (result.kind, result.status, result.retryable) == (GONE, None, True)
    assert (_seen(result), server.connections) == ([(GONE, None)] * 3, 0)


# Time limits


async def test_retry_after_is_kept_to_in_seconds_and_as_a_date():
    async def gap(headers):
        def script(request):
            return (
                act.refuses("429 Busy", "busy", **headers()) if request.number == 1 else act.sound
            )

        async with (
            FaultyServer(script) as server,
            client_of(server, _limits(False)) as c,
        ):
            result = await c.send(_request())
            assert _seen(result) == [(HTTP, 429), (None, 200)]
            return server.received[1].at_s - server.received[0].at_s

    def date():
        return {
            "retry_after": format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        }

    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    in_seconds, as_date, without, in_the_past = await asyncio.gather(
        gap(lambda: {"retry_after": "1"}),
        gap(date),
        gap(dict),
        gap(lambda: {"retry_after": past}),
    )
    assert 1.0 <= in_seconds < 5.0
    assert 0.9 <= as_date < 5.0
    assert max(without, in_the_past) < 0.9


def test_a_retry_after_beyond_the_time_of_a_sample_ends_it_with_what_was_told():
    busy = act.refuses("429 Busy", "busy", retry_after="100000")
    (result,), received = _send([busy], _limits(False, sample_timeout_s=0.3))
    assert isinstance(result, Failure)
    assert (result.kind, result.status, _seen(result), len(received)) == (
        HTTP,
        429,
        [(HTTP, 429)],
        1,
    )


@pytest.mark.parametrize(
    ("stream", "sent", "status"),
    [
        (True, [act.STREAM_HEAD, act.chunked(b": ping\n\n")], 200),
        (True, [act.STREAM_HEAD, act.chunked(b":\n")], 200),
        (True, [act.STREAM_HEAD, act.chunked(b"event: ping\nid: 1\nretry: 5\n\n")], 200),
        (True, [act.STREAM_HEAD, act.chunked(b"data:\n\n")], 200),
        (True, [act.STREAM_HEAD, act.chunked(b'data: {"choices": []}\n\n')], 200),
        (
            True,
            [
                act.STREAM_HEAD,
                act.chunked(b'data: {"choices": [{"delta": {"content": "A"}}]}\n\n'),
                b"1\r\n:\r\n",
            ],
            200,
        ),
        (False, [act.http(b"", length=1_000_000), b" "], 200),
        (False, [b"HTTP/1.1 102 Processing\r\n\r\n"], None),
        (False, [b"HTTP/1.1 200 OK\r\n", b"X-Wait: yes\r\n"], None),
    ],
)
def test_what_keeps_a_connection_open_and_is_no_data_is_silence(stream, sent, status):
    limits = _limits(stream, stall_timeout_s=0.3, sample_timeout_s=30.0, max_attempts=2)
    (result,), _ = _send([act.keeps_open(*sent)], limits)
    assert isinstance(result, Failure)
    assert (result.kind, result.status, _seen(result)) == (TIMEOUT, status, [(TIMEOUT, status)] * 2)
    assert result.message == "no data for 0.3 s"


@pytest.mark.parametrize("stream", STREAM)
def test_a_trickle_of_bytes_ends_with_the_time_of_the_sample(stream):
    (result,), received = _send(
        [act.trickles], _limits(stream, stall_timeout_s=0.2, sample_timeout_s=0.5)
    )
    assert isinstance(result, Failure)
    assert (result.kind, result.status, _seen(result), len(received)) == (
        TIMEOUT,
        200,
        [(TIMEOUT, 200)],
        1,
    )
    (attempt,) = result.attempts
    assert 0.4 < attempt.end_s - attempt.start_s < 5.0


# Memory and size


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize("name", ["gzip bomb", "endless", "endless stream"])
def test_what_does_not_end_is_given_up_at_the_limit_and_not_held(name, stream):
    fault = {
        "gzip bomb": act.gzip_bomb(64),
        "endless": act.endless,
        "endless stream": act.endless_stream,
    }[name]
    limits = _limits(stream, max_response_bytes=1_000_000, max_attempts=2)
    tracemalloc.start()
    try:
        (result,), received = _send([fault], limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(result, Failure)
    assert (result.kind, result.status, len(received)) == (INVALID, 200, 2)
    assert "larger than 1000000 bytes" in result.message
    assert _seen(result) == [(INVALID, 200)] * 2
    assert peak < 8_000_000


def test_what_a_failure_says_stays_short_whatever_was_sent():
    (result,), _ = _send([act.sends(b"y" * 300_000)], _limits(False, max_attempts=1))
    assert isinstance(result, Failure)
    assert (result.kind, result.status) == (INVALID, None)
    assert len(result.message) < 1000


@pytest.mark.parametrize("stream", STREAM)
def test_an_answer_of_100_000_events_is_read_whole_and_soon(stream):
    (result,), _ = _send([act.many_events], _limits(stream))
    assert isinstance(result, Response)
    assert (len(result.text), set(result.text), result.finish_reason) == (100_000, {"x"}, "stop")
    assert result.latency_s < 10.0


# Reused connections


@pytest.mark.parametrize("fault", [act.hangs_up, act.resets])
def test_a_connection_that_closes_as_it_is_used_again_costs_one_attempt(fault):
    (first, second), received = _send([act.sound, fault, act.sound], _limits(False), requests=2)
    assert isinstance(first, Response)
    assert isinstance(second, Response)
    assert (first.text, second.text) == (_right(1), _right(2))
    assert (_seen(first), _seen(second)) == ([(None, 200)], [(GONE, None), (None, 200)])
    assert received[2].connection != received[1].connection


def test_several_connections_that_close_as_they_are_used_again_use_no_attempts_up():
    """Three attempts are made on new connections; two fail with connections that were kept."""
    seen = []

    async def busy_and_closing(turn):
        if turn.request.question == "question 0":
            await asyncio.sleep(0.05)
            await act.sound(turn)
            return
        seen.append(turn.request.connection)
        if turn.request.connection <= 2:
            await turn.finish()
        else:
            await (act.sound if turn.request.connection == 5 else act.refuses("503 Busy", "busy"))(
                turn
            )

    async def body(client, server):
        await asyncio.gather(*(client.send(_request(0)) for _ in range(2)))
        return await client.send(_request(1))

    result = _with([busy_and_closing], _limits(False, max_attempts=3), body)
    assert isinstance(result, Response)
    assert sorted(seen[::2]) == [1, 2, 5]
    assert seen[1::2] == [3, 4]
    assert _seen(result) == [(GONE, None), (HTTP, 503), (GONE, None), (HTTP, 503), (None, 200)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_closes_behind_every_answer_costs_no_retries_and_soon_no_attempts(
    stream,
):
    async def closes_behind_its_answer(turn):
        if first_on.setdefault(turn.request.connection, turn.request.number) == turn.request.number:
            await (act.sound_stream if stream else act.sound)(turn)
        else:  # sent before the client noticed the end
            await turn.finish()

    async def body(client, server):
        results = [await client.send(_request(number)) for number in range(1, 13)]
        return results, client.retries

    first_on = {}
    limits = _limits(stream, max_attempts=1, retry_budget=0)
    results, retries = _with([closes_behind_its_answer], limits, body)
    assert all(isinstance(result, Response) for result in results)
    assert retries == 0
    assert [len(result.attempts) for result in results] == [1, 2, 2, 2, *[1] * 8]


def test_a_connection_that_was_closed_while_idle_loses_no_sample_and_hides_no_attempt():
    async def body(client, server):
        await client.send(_request(1))
        # the client has not noticed the end when it sends the next request
        server.shut_idle_connections()
        return await client.send(_request(2)), server.received[1:]

    result, received = _with([act.sound], _limits(False), body)
    assert isinstance(result, Response)
    assert result.text == _right(2)
    *lost, last = result.attempts
    assert [request.request_id for request in received] == [last.request_id]
    assert [attempt.failure for attempt in lost] in ([], [GONE])


@pytest.mark.parametrize("stream", STREAM)
@pytest.mark.parametrize(
    "extra",
    [
        act.twice_at_once,
        act.twice_after(0.02),
        act.then_408,
        act.then_the_beginning_of_another(0.02),
    ],
    ids=["twice at once", "twice, the second late", "408 when idle", "the beginning of something"],
)
def test_what_comes_on_an_idle_connection_is_nobodys_answer(extra, stream):
    async def body(client, server):
        results = []
        for number in (1, 2, 3):
            results.append(await client.send(_request(number)))
            late = time.monotonic() + 5.0
            await asyncio.sleep(0.06 * (number == 1))
            # Wait until the surplus bytes have arrived.
            while number == 1 and client.list_open() and time.monotonic() < late:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return results

    script = [extra, act.sound]
    results = _with(script, _limits(stream), body)
    assert [result.text if isinstance(result, Response) else result for result in results] == [
        _right(number) for number in (1, 2, 3)
    ]
    assert [_seen(result) for result in results] == [[(None, 200)]] * 3


def test_a_late_second_answer_is_nobodys_answer_where_no_connection_is_ever_idle():
    def script(request):
        return act.later(0.01, act.twice_after(0.005) if request.number % 10 == 0 else act.sound)

    async def body(client, server):
        return await _all(client, samples=200, in_flight=8), server.received

    results, received = _with(script, _limits(False), body)
    answers = [result.text if isinstance(result, Response) else result for result in results]
    assert [(n, said) for n, said in enumerate(answers) if said != _right(n)] == []
    assert sorted(request.request_id for request in received) == sorted(
        a.request_id for a in _attempts(results)
    )


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_server_that_gives_every_answer_the_same_id_costs_one_question_at_most(
    in_flight,
):
    body = json.dumps({"id": "x", "choices": [{"text": "A", "finish_reason": "stop"}]}).encode()

    async def all_of_them(client, server):
        return await _all(client, samples=40, in_flight=in_flight)

    results = _with([act.replies(body)], _limits(False), all_of_them)
    assert all(isinstance(result, Response) for result in results)
    assert len(list(_attempts(results))) <= 41


def test_a_stream_that_goes_on_after_its_end_is_not_listened_to_for_long():
    (result,), _ = _send([act.pings_after_done], _limits(True, sample_timeout_s=5.0))
    assert isinstance(result, Response)
    assert result.text == _right()
    assert result.latency_s < 2.0


def test_a_lost_stream_that_stays_open_is_asked_again_at_once():
    (result,), _ = _send(
        [act.loses_the_stream_and_stays], _limits(True, max_attempts=1, retry_budget=0)
    )
    assert isinstance(result, Response)
    assert [(attempt.streamed, attempt.failure) for attempt in result.attempts] == [
        (True, INVALID),
        (False, None),
    ]
    assert result.attempts[0].end_s - result.attempts[0].start_s < 2.0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_server_that_hangs_up_before_it_read_the_request_is_noticed(loop):
    async def deaf(reader, writer):
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        writer.write_eof()
        await over.wait()
        writer.transport.abort()
        heard.set()

    over, heard = asyncio.Event(), asyncio.Event()

    async def main():
        async with await asyncio.start_server(deaf, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            async with kept(
                Client(Endpoint(base_url=url), _limits(False, max_attempts=1, stall_timeout_s=2.0))
            ) as client:
                big = Request(
                    sample_id="1", prompt="x" * 20_000_000, sampling=SamplingParams(max_tokens=2)
                )
                result = await client.send(big)
                over.set()
                await asyncio.wait_for(heard.wait(), 5.0)
                return result

    result = pytest.importorskip(loop).run(main())
    assert isinstance(result, Failure)
    assert (result.kind, result.attempts[0].end_s - result.attempts[0].start_s < 2.0) == (
        GONE,
        True,
    )


async def test_a_client_that_is_closed_leaves_nobody_waiting():
    async with FaultyServer([act.silent]) as server:
        async with kept(client_of(server, _limits(False))) as client:
            sends = [asyncio.create_task(client.send(_request(number))) for number in range(3)]
            await asyncio.sleep(0.5)
            assert len(server.received) == 3
        results = await asyncio.wait_for(asyncio.gather(*sends), 5.0)
        assert server.connections == 3
        assert [result.kind for result in results if isinstance(result, Failure)] == [GONE] * 3


def test_an_answer_that_a_stream_lost_is_no_retry_and_is_asked_for_however_few_are_left():
    limits = _limits(True, max_attempts=1, retry_budget=0)
    (result,), _ = _send([act.loses_the_stream], limits)
    assert isinstance(result, Response)
    assert [(attempt.streamed, attempt.failure) for attempt in result.attempts] == [
        (True, INVALID),
        (False, None),
    ]


def test_nothing_is_kept_of_connections_that_are_gone():
    async def body(client, server):
        for number in range(50):
            assert isinstance(await client.send(_request(number)), Response)
        gc.collect()
        return len(client.list_open())

    # Each answer ends with its connection.
    assert _with([act.without_length], _limits(False), body) <= 2


async def test_a_proxy_that_refuses_a_tunnel_is_an_http_error_of_its_own():
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(
            Endpoint(base_url="https://model.invalid/v1"), _limits(False), proxy=proxy
        ) as client:
            result = await client.send(_request())
    assert isinstance(result, Failure)
    assert (result.kind, result.status, result.retryable, len(result.attempts)) == (
        HTTP,
        407,
        False,
        1,
    )
    assert "from the proxy" in result.message


def test_waiting_for_the_rate_limit_is_not_the_samples_time():
    async def body(client, server):
        return await _all(client, samples=5, in_flight=5)

    limits = _limits(False, rate_limit=5.0, sample_timeout_s=0.5, stall_timeout_s=0.5)
    assert all(isinstance(result, Response) for result in _with([act.sound], limits, body))


# Many requests at a time


def test_answers_in_reverse_order_go_to_their_own_questions():
    async def body(client, server):
        return await asyncio.gather(*(client.send(_request(number)) for number in range(1, 33)))

    results = _with([act.in_reverse(32)], _limits(False), body)
    assert [result.text for result in results if isinstance(result, Response)] == [
        _right(n) for n in range(1, 33)
    ]


@pytest.mark.parametrize(("seed", "stream"), list(enumerate(STREAM)))
def test_no_sample_is_lost_or_doubled_or_given_anothers_answer(seed, stream):
    samples = 200
    told = {}
    rng = random.Random(seed)
    sound = list(SOUND.values())
    faults = [
        fault for name, fault in FAULTS.items() if name not in ("no byte", "no byte of the body")
    ]

    def script(request):
        if rng.random() < 0.5:
            told[request.request_id] = (None, 200)
            return rng.choice(sound)
        if rng.random() < 0.05:
            refusal, status = rng.choice(list(REFUSALS.values()))
            told[request.request_id] = (HTTP, status)
            return refusal
        fault, kind, status = rng.choice(faults)
        told[request.request_id] = (kind, status)
        return fault

    async def body(client, server):
        return await _all(client, samples=samples, in_flight=16), server.received

    started = time.monotonic()
    results, received = _with(script, _limits(stream, stall_timeout_s=1.0, max_attempts=4), body)
    assert time.monotonic() - started < 30.0
    assert len(results) == samples
    assert 0 < sum(isinstance(result, Failure) for result in results) < samples / 2

    asked = {request.request_id: request.question for request in received}
    assert len(asked) == len(received)
    assert sorted(asked) == sorted(attempt.request_id for attempt in _attempts(results))
    for number, result in enumerate(results):
        assert {asked[attempt.request_id] for attempt in result.attempts} == {f"question {number}"}
        assert _seen(result) == [told[attempt.request_id] for attempt in result.attempts]
        assert all(attempt.failure for attempt in result.attempts[:-1])
        if isinstance(result, Response):
            assert (result.text, result.attempts[-1].failure) == (_right(number), None)
        else:
            last = result.attempts[-1]
            assert (result.kind, result.status) == (last.failure, last.status)
            # Each of four may first have met the end of a reused connection.
            assert 4 <= len(result.attempts) <= 8 or not result.retryable
