"""Test the servers that a router names in the header fields of its replies."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format.response_head import (
    CONTEXT_FIELD,
    CONTEXT_SERVER,
    GENERATION_FIELD,
    GENERATION_SERVER,
    read_servers,
)
from serve_eval.schema import (
    AnsweringServers,
    Attempt,
    Endpoint,
    Failure,
    Limits,
    Request,
    Response,
    SamplingParams,
)
from tests.client import faulty_server as act
from tests.client.faulty_server import Act, FaultyServer, Turn
from tests.client.kept import kept

BOTH = {CONTEXT_SERVER: "c:1", GENERATION_SERVER: "g:1"}
NAMED = AnsweringServers(context="c:1", generation="g:1")
FIELDS = {name.lower().replace("-", "_"): value for name, value in BOTH.items()}
KEY = "sk-of-the-router-0123456789"


@pytest.mark.parametrize(
    ("context", "generation", "found"),
    [
        ("c:1", "g:1", NAMED),
        (None, None, None),
        ("c:1", None, AnsweringServers(context="c:1")),
        (None, "decode one", AnsweringServers(generation="decode one")),
        (" c:1\t", "", AnsweringServers(context="c:1")),
        ("c" * 200, "g" * 201, AnsweringServers(context="c" * 200)),
        ("c:1, c:2", "g:1", AnsweringServers(generation="g:1")),
        ("c\xe9", "g\x7f", None),
        ("c\x1b[31m", "g\tg", None),
        ("c\nc", "", None),
    ],
)
def test_a_name_is_short_printable_ascii_and_one(
    context: str | None, generation: str | None, found: AnsweringServers | None
) -> None:
    values = {CONTEXT_FIELD: context, GENERATION_FIELD: generation}
    assert read_servers({name: value for name, value in values.items() if value is not None}) == (
        found
    )


@given(st.text(), st.text())
def test_no_name_is_too_odd(context: str, generation: str) -> None:
    read_servers({CONTEXT_FIELD: context, GENERATION_FIELD: generation})


def test_an_attempt_without_names_is_written_as_before() -> None:
    attempt = Attempt(start_s=1.0, end_s=2.0, failure=None, status=200, request_id="r")
    assert b"servers" not in msgspec.json.encode(attempt)


# Through real sockets


def _ask(
    *acts: Act, stream: bool = False, attempts: int = 1, api_key: str | None = None
) -> list[Attempt]:
    """Return the attempts of two requests, the first of which gets the first `acts`."""

    async def story() -> list[Attempt]:
        requests = [
            Request(sample_id=name, prompt=name, sampling=SamplingParams(max_tokens=5))
            for name in ("one", "two")
        ]
        limits = Limits(stream=stream, max_attempts=attempts)
        async with FaultyServer(acts) as server:
            endpoint = Endpoint(base_url=server.base_url, model="m")
            async with kept(Client(endpoint, limits, api_key=api_key)) as client:
                results = [await client.send(request) for request in requests]
                named = any(one.servers for result in results for one in result.attempts)
                assert client.saw_servers or not named
        assert all(isinstance(one, Response | Failure) for one in results)
        return [attempt for one in results for attempt in one.attempts]

    return asyncio.run(story())


def _sends(*lines: str, status: str = "200 OK", events: bool = False, behind: str = "") -> Act:
    """Return an act that answers in chunks, with these lines in its head and `behind` after it."""
    kind = "text/event-stream" if events else "application/json"
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Transfer-Encoding: chunked", *lines]

    async def send(turn: Turn) -> None:
        body = act.whole_stream(turn.request) if events else act.answer(turn.request)
        await turn.write("\r\n".join([*head, "", ""]).encode("latin-1") + act.chunked(body))
        await turn.write(f"0\r\n{behind}\r\n".encode())

    return send


CONTEXT_LINE, GENERATION_LINE = (f"{name}: {value}" for name, value in BOTH.items())


@pytest.mark.parametrize("events", [False, True])
def test_answers_name_their_servers_and_the_next_answer_does_not_inherit_them(
    events: bool,
) -> None:
    named = _sends(CONTEXT_LINE.upper().replace("C:1", "c:1"), GENERATION_LINE, events=events)
    attempts = _ask(named, _sends(events=events), stream=events)
    assert [one.servers for one in attempts] == [NAMED, None]
    assert [one.failure for one in attempts] == [None, None]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([GENERATION_LINE], AnsweringServers(generation="g:1")),
        ([CONTEXT_LINE, CONTEXT_LINE, GENERATION_LINE], AnsweringServers(generation="g:1")),
        (
            [CONTEXT_LINE, GENERATION_LINE, "X-GENERATION-server: g:2"],
            AnsweringServers(context="c:1"),
        ),
        ([GENERATION_LINE] * 3, None),
        (["X-Context-Server: c\xe9", "X-Generation-Server:"], None),
        (["X-Context-Server: " + "c" * 201, "X-Generation-Serves: g"], None),
    ],
)
def test_a_field_that_is_repeated_or_malformed_names_no_server(
    lines: list[str], found: AnsweringServers | None
) -> None:
    attempts = _ask(_sends(*lines))
    assert [one.servers for one in attempts] == [found, found]
    assert [one.failure for one in attempts] == [None, None]


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error", "200 OK"])
def test_failures_name_their_servers(status: str) -> None:
    attempts = _ask(act.replies(b"{}", status, **FIELDS), act.sound)
    assert attempts[0].failure is not None
    assert [one.servers for one in attempts] == [NAMED, None]


def test_each_attempt_has_the_servers_of_its_own_reply() -> None:
    fails = act.refuses("503 Service Unavailable", "busy", **FIELDS, retry_after="0")
    attempts = _ask(fails, _sends("X-Generation-Server: g:2"), attempts=2)
    assert [one.servers for one in attempts[:2]] == [NAMED, AnsweringServers(generation="g:2")]


def test_a_key_in_a_name_is_masked() -> None:
    attempts = _ask(_sends(f"X-Context-Server: {KEY}:1", GENERATION_LINE), api_key=KEY)
    assert attempts[0].servers == AnsweringServers(context="***:1", generation="g:1")


def test_names_in_an_informational_head_or_behind_an_answer_do_not_count() -> None:
    async def hints_first(turn: Turn) -> None:
        await turn.write(f"HTTP/1.1 103 Early Hints\r\n{CONTEXT_LINE}\r\n\r\n".encode())
        await act.sound(turn)

    attempts = _ask(hints_first, _sends(behind=f"{CONTEXT_LINE}\r\n"))
    assert [one.servers for one in attempts] == [None, None]


def test_the_answer_to_another_request_names_no_server_of_this_one() -> None:
    first: list[str] = []

    async def names_the_first(turn: Turn) -> None:
        first.append(turn.request.request_id)
        told = {**BOTH, "X-Request-ID": first[0]}
        await turn.write(act.http(act.answer(turn.request), headers=told))

    attempts = _ask(names_the_first)
    assert attempts[0].servers == NAMED
    assert len(attempts) > 1
    assert all(one.failure and one.servers is None for one in attempts[1:])


def test_the_copy_of_an_earlier_answer_names_no_server() -> None:
    said = act.http(
        b'{"id": "same", "choices": [{"text": "7", "finish_reason": "stop"}]}', headers=BOTH
    )

    async def repeats(turn: Turn) -> None:
        await turn.write(said)

    attempts = _ask(repeats)
    assert [(one.servers, one.failure is None) for one in attempts] == [
        (NAMED, True),
        (None, False),
    ]


def test_an_answer_too_many_names_no_server() -> None:
    async def names(turn: Turn) -> None:
        said = act.http(act.answer(turn.request), headers=BOTH)
        await turn.write(said * (2 if turn.request.number == 2 else 1))

    attempts = _ask(names)
    assert [(one.servers, one.failure is None) for one in attempts] == [
        (NAMED, True),
        (None, False),
        (NAMED, True),
    ]
