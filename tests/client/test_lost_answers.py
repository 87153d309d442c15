"""Walk docs/requests.md's table of events: which failed attempts may have lost an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from serve_eval.client.client import Client
from serve_eval.schema import (
    Attempt,
    Endpoint,
    FailureKind,
    Limits,
    LostAnswer,
    Request,
    Response,
    SamplingParams,
    find_lost,
)
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer, Script
from tests.client.kept import client_of, kept
from tests.clock import until

PAGE = Path(__file__).parents[2] / "docs/requests.md"
NOTHING, ANSWER, RESTART = LostAnswer.NOTHING, LostAnswer.ANSWER, LostAnswer.RESTART
IN_WORDS = {"no": NOTHING, "yes": ANSWER, "with its server": RESTART}
BAD_WRAP = b"{\"detail\": \"400, message='Bad Request', url='http://localhost:1/v1'\"}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A script that makes an event happen to the last of `requests`, and the limits for it."""

    script: Callable[[], Script]
    limits: Mapping[str, Any] = field(default_factory=dict)
    requests: int = 1


def once(fault):
    return lambda: act.fails_then(1, fault, act.sound)


def second(fault):
    """Script the fault for the second request on a kept connection."""
    return lambda: [act.sound, fault, act.sound]


def _dies():
    raise NotImplementedError  # it needs its server: see `_ask`


def _another_id():
    sent = []

    def script(request):
        sent.append(request.request_id)
        named = sent[0] if len(sent) == 2 else request.request_id
        return act.replies(act.answer(request), **{"X-Request-ID": named})

    return script


def _echo():
    said = []

    def script(request):
        whole = {**json.loads(act.answer(request)), "id": f"cmpl-{len(said)}"}
        said.append(json.dumps(whole).encode())
        return act.replies(said[0] if len(said) == 2 else said[-1])

    return script


async def _closes_late(turn):
    await asyncio.sleep(0.2)
    await turn.finish()


EVENTS = {
    "refuses the connection": Event(script=lambda: [act.sound]),
    "resets the connection, or closes it": Event(script=once(act.closes_in_the_body)),
    "closes within a round trip": Event(script=second(act.hangs_up), requests=2),
    "closes later, before any byte": Event(script=second(_closes_late), requests=2),
    "no data for": Event(script=once(act.silent), limits={"stall_timeout_s": 0.1}),
    "no connection within": Event(script=lambda: [act.sound], limits={"connect_timeout_s": 0.1}),
    "429, or 503 with Retry-After": Event(
        script=once(act.refuses("503 Busy", "later", retry_after="0"))
    ),
    "408, 500": Event(script=once(act.refuses("500 Internal Server Error", "oh"))),
    "a 500 that quotes": Event(script=lambda: [act.replies(BAD_WRAP, "500 Internal Server Error")]),
    "400 or any other 5xx": Event(script=lambda: [act.refuses("400 Bad Request", "engine error")]),
    "any other 4xx": Event(script=lambda: [act.refuses("404 Not Found", "no")]),
    "200 with cut JSON": Event(script=once(act.cut_json)),
    "200 with an error": Event(
        script=once(act.replies(b'{"error": {"message": "engine"}, "choices": []}'))
    ),
    "one in a field of unknown meaning": Event(
        script=once(
            act.replies(
                b'{"choices": [{"index": 0, "finish_reason": "stop", "text": "", "answer": "x"}]}'
            )
        )
    ),
    "a generation that ends": Event(script=once(act.says("half", "cancelled"))),
    "not strict HTTP": Event(script=once(act.two_lengths)),
    "max_response_bytes": Event(script=once(act.endless), limits={"max_response_bytes": 10_000}),
    "ends without a finish_reason": Event(
        script=once(act.ends_the_stream_early), limits={"stream": True}
    ),
    "`[DONE]` only": Event(script=once(act.loses_the_stream), limits={"stream": True}),
    "continues after its finish_reason": Event(
        script=once(
            act.replies(
                b"".join(
                    b'data: {"id": "%d", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
                    % i
                    for i in range(2)
                ),
                content_type="text/event-stream",
            )
        ),
        limits={"stream": True},
    ),
    "repeats the answer to an earlier request": Event(script=_echo, requests=2),
    "an extra answer on a reused": Event(script=_another_id, requests=2),
    "an outage follows": Event(script=_dies, limits={"outage_timeout_s": 10.0}),
}
"""The events by words of their rows."""
ELSEWHERE = {
    "state: starting": "tests/client/test_starting.py",
    "a certificate": "tests/client/test_connection.py",
    "serve-eval itself ends": "tests/cli/test_interrupts.py",
    "an answer is withdrawn": "tests/client/test_steps.py",
    "an attempt of a judge": "tests/evaluation/judging/test_judging.py",
    "an attempt of one repeat": "tests/verdicts/test_repaired.py",
}
"""Rows whose events are no attempts, or need more than one server, and the files of their tests."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    monkeypatch.setattr("serve_eval.client.wire_format.reply.AFTER_FINISH_S", 0.2)


def list_rows():
    """Return the events of the page's table with what it says of repaired samples."""
    lines = PAGE.read_text().splitlines()
    start = lines.index("| event | the attempt is | repaired | retried |") + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            return rows
        event, _, repaired, _ = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append((event, repaired))
    return rows


def test_every_row_of_the_table_is_tried_once():
    for event, _ in list_rows():
        assert len([name for name in (*EVENTS, *ELSEWHERE) if name in event]) == 1, event
    events = "\n".join(event for event, _ in list_rows())
    assert all(name in events for name in (*EVENTS, *ELSEWHERE))


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_loses_an_answer_as_the_page_says(name):
    [repaired] = [said for event, said in list_rows() if name in event]
    attempts = _ask(name)
    assert attempts[0].failure is not None
    assert attempts[0].lost is IN_WORDS[repaired.partition(" (")[0]]


def _request(number):
    sampling = SamplingParams(max_tokens=20)
    return Request(sample_id=str(number), prompt=f"question {number}", sampling=sampling)


def _ask(name):
    """Return the attempts of the last request, to which the event happens."""
    event = EVENTS[name]
    given = {"stall_timeout_s": 20.0, "sample_timeout_s": 40.0, "max_attempts": 2, **event.limits}
    return uvloop.run(_ask_server(name, event, Limits(**given)))


async def _ask_server(name, event, limits):
    if name == "refuses the connection":
        return await _ask_nobody(limits, "http://127.0.0.1:9/v1")
    if name == "no connection within":
        async with FaultyServer([act.sound]) as mute:  # it never answers a TLS handshake
            return await _ask_nobody(limits, mute.base_url.replace("http:", "https:"))
    if name == "an outage follows":
        return await _ask_dying(limits)
    server = FaultyServer(event.script())
    async with server, kept(client_of(server, limits)) as client:
        for number in range(event.requests):
            result = await client.send(_request(number))
        return result.attempts


async def _ask_nobody(limits, url):
    async with Client(Endpoint(base_url=url), limits) as client:
        return (await client.send(_request(0), once=True)).attempts


async def _ask_dying(limits):
    """Ask a server that ends with the request, and comes back."""
    died = False

    async def die(turn):
        nonlocal died
        if died:
            await act.sound(turn)
            return
        died = True
        server.stop_listening()
        turn.writer.transport.abort()

    server = FaultyServer(lambda request: die)
    async with server, client_of(server, limits) as client:
        watching = asyncio.create_task(client.liveness.watch())
        asked = asyncio.create_task(client.send(_request(0)))
        while not asked.done():
            await asyncio.sleep(0.01)
            if client.liveness.closed:
                await server.listen()
                await until(lambda: not client.liveness.closed)
        watching.cancel()
        return asked.result().attempts


@pytest.mark.parametrize("status", [429, 401, 403, 404, 413, 415, 422, 302])
def test_a_status_that_refuses_a_request_loses_nothing(status):
    assert _status(f"{status} No") is NOTHING


@pytest.mark.parametrize("status", [400, 408, 409, 418, 499, 500, 501, 502, 503, 504, 507, 529])
def test_any_other_error_may_have_lost_an_answer(status):
    assert _status(f"{status} Oh") is ANSWER


def _status(line):
    async def main():
        async with FaultyServer([act.refuses(line, "no")]) as server:
            limits = Limits(max_attempts=1)
            async with client_of(server, limits) as client:
                return (await client.send(_request(0))).attempts

    return find_lost(asyncio.run(main()))


async def test_a_server_that_closes_busy_connections_soon_loses_answers_visibly():
    """After three such ends each request has a connection of its own, whose end is a loss."""

    def script(request):
        return act.hangs_up if request.number % 2 == 0 else act.sound

    server = FaultyServer(script)
    async with server, kept(client_of(server)) as client:
        lost = [find_lost((await client.send(_request(i))).attempts) for i in range(20)]
    assert lost[:2] == [NOTHING, NOTHING]
    assert ANSWER in lost[-8:]


async def test_an_answer_lost_in_any_attempt_marks_the_sample():
    script = [act.refuses("500 Oh", "no"), act.refuses("429 Busy", "no"), act.sound]
    server = FaultyServer(script)
    async with server, client_of(server) as client:
        result = await client.send(_request(0))
        assert isinstance(result, Response)
    assert [one.lost_answer for one in result.attempts] == [ANSWER, NOTHING, NOTHING]
    assert find_lost(result.attempts) is ANSWER


@pytest.mark.parametrize(
    ("failure", "status", "lost"),
    [
        (FailureKind.HTTP_ERROR, 500, ANSWER),
        (FailureKind.HTTP_ERROR, 429, NOTHING),
        (FailureKind.TIMEOUT, None, ANSWER),
        (FailureKind.INVALID_RESPONSE, 200, ANSWER),
        (FailureKind.DISCONNECTED, None, NOTHING),
        (None, 200, NOTHING),
    ],
)
def test_a_journal_from_before_the_mark_is_judged_by_its_failures(failure, status, lost):
    now = time.time()
    one = Attempt(start_s=now, end_s=now, failure=failure, status=status, request_id="x")
    assert one.lost_answer is lost
