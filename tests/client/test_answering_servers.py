"""Test which servers and times a router or an orchestrator tells with its replies."""

import asyncio
import json

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format.response_head import (
    CONTEXT_FIELD,
    CONTEXT_SERVER,
    GENERATION_FIELD,
    GENERATION_SERVER,
    MAX_BEHIND,
    RETURN,
    STAMPS,
    TIMING,
    BehindDone,
    parse,
    read_servers,
)
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.launchers._http.server import json_response, serve_app
from serve_eval.schema import (
    AnsweringServers,
    Attempt,
    Endpoint,
    Failure,
    Limits,
    Message,
    Request,
    Response,
    SamplingParams,
    ServerTiming,
)
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
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
def test_a_name_is_short_printable_ascii_and_one(context, generation, found):
    values = {CONTEXT_FIELD: context, GENERATION_FIELD: generation}
    assert read_servers({name: value for name, value in values.items() if value is not None}) == (
        found
    )


@given(st.text(), st.text())
def test_no_name_is_too_odd(context, generation):
    read_servers({CONTEXT_FIELD: context, GENERATION_FIELD: generation})


def test_an_attempt_without_names_is_written_as_before():
    attempt = Attempt(start_s=1.0, end_s=2.0, failure=None, status=200, request_id="r")
    assert b"servers" not in msgspec.json.encode(attempt)


# Through real sockets


def _ask(*acts, stream=False, attempts=1, api_key=None):
    """Return the attempts of two requests, the first of which gets the first `acts`."""

    async def story():
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


def _sends(*lines, status="200 OK", events=False, behind=""):
    """Return an act that answers in chunks, with these lines in its head and `behind` after it."""
    kind = "text/event-stream" if events else "application/json"
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Transfer-Encoding: chunked", *lines]

    async def send(turn):
        body = act.whole_stream(turn.request) if events else act.answer(turn.request)
        await turn.write("\r\n".join([*head, "", ""]).encode("latin-1") + act.chunked(body))
        await turn.write(f"0\r\n{behind}\r\n".encode())

    return send


CONTEXT_LINE, GENERATION_LINE = (f"{name}: {value}" for name, value in BOTH.items())


@pytest.mark.parametrize("events", [False, True])
def test_answers_name_their_servers_and_the_next_answer_does_not_inherit_them(
    events,
):
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
def test_a_field_that_is_repeated_or_malformed_names_no_server(lines, found):
    attempts = _ask(_sends(*lines))
    assert [one.servers for one in attempts] == [found, found]
    assert [one.failure for one in attempts] == [None, None]


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error", "200 OK"])
def test_failures_name_their_servers(status):
    attempts = _ask(act.replies(b"{}", status, **FIELDS), act.sound)
    assert attempts[0].failure is not None
    assert [one.servers for one in attempts] == [NAMED, None]


def test_each_attempt_has_the_servers_of_its_own_reply():
    fails = act.refuses("503 Service Unavailable", "busy", **FIELDS, retry_after="0")
    attempts = _ask(fails, _sends("X-Generation-Server: g:2"), attempts=2)
    assert [one.servers for one in attempts[:2]] == [NAMED, AnsweringServers(generation="g:2")]


def test_a_key_in_a_name_is_masked():
    attempts = _ask(_sends(f"X-Context-Server: {KEY}:1", GENERATION_LINE), api_key=KEY)
    assert attempts[0].servers == AnsweringServers(context="***:1", generation="g:1")


def test_names_in_an_informational_head_or_behind_an_answer_do_not_count():
    async def hints_first(turn):
        await turn.write(f"HTTP/1.1 103 Early Hints\r\n{CONTEXT_LINE}\r\n\r\n".encode())
        await act.sound(turn)

    attempts = _ask(hints_first, _sends(behind=f"{CONTEXT_LINE}\r\n"))
    assert [one.servers for one in attempts] == [None, None]


def test_the_answer_to_another_request_names_no_server_of_this_one():
    first = []

    async def names_the_first(turn):
        first.append(turn.request.request_id)
        told = {**BOTH, "X-Request-ID": first[0]}
        await turn.write(act.http(act.answer(turn.request), headers=told))

    attempts = _ask(names_the_first)
    assert attempts[0].servers == NAMED
    assert len(attempts) > 1
    assert all(one.failure and one.servers is None for one in attempts[1:])


def test_the_copy_of_an_earlier_answer_names_no_server():
    said = act.http(
        b'{"id": "same", "choices": [{"text": "7", "finish_reason": "stop"}]}', headers=BOTH
    )

    async def repeats(turn):
        await turn.write(said)

    attempts = _ask(repeats)
    assert [(one.servers, one.failure is None) for one in attempts] == [
        (NAMED, True),
        (None, False),
    ]


def test_an_answer_too_many_names_no_server():
    async def names(turn):
        said = act.http(act.answer(turn.request), headers=BOTH)
        await turn.write(said * (2 if turn.request.number == 2 else 1))

    attempts = _ask(names)
    assert [(one.servers, one.failure is None) for one in attempts] == [
        (NAMED, True),
        (None, False),
        (NAMED, True),
    ]


FIELDS_SERVER_TIMING = {
    TIMING: (
        "disagg_queue;dur=0.100000, ctx_e2e;dur=8.5, gen_queue;dur=0.2,"
        " gen_kv_transfer;dur=1.250000"
    ),
    STAMPS: (
        "disagg-start;ts=12345.123456789, disagg-end;ts=12345.2, ctx-start;ts=12345.15,"
        " gen-end;ts=12345.3"
    ),
}
FOUND = ServerTiming(arrival="12345.123456789", kv_transfer_s=0.00125)
CHUNK = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"7"},"finish_reason":"stop"}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
EVENT = b"event: trtllm.perf_metrics\ndata: " + json.dumps(FIELDS_SERVER_TIMING).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("timing", "stamps", "found"),
    [
        (FIELDS_SERVER_TIMING[TIMING], FIELDS_SERVER_TIMING[STAMPS], FOUND),
        (None, FIELDS_SERVER_TIMING[STAMPS], ServerTiming(arrival=FOUND.arrival)),
        (
            "gen_kv_transfer;dur=-1",
            "ctx-start;ts=1.5,disagg-start;ts=2.123456",
            ServerTiming(arrival="2.123456"),
        ),
        (FIELDS_SERVER_TIMING[TIMING], None, None),
        (FIELDS_SERVER_TIMING[TIMING], "server-start;ts=12345.123456", None),
        (FIELDS_SERVER_TIMING[TIMING], "disagg-start;ts=1.5, disagg-start;ts=2.5", None),
        (FIELDS_SERVER_TIMING[TIMING], "disagg-start;ts=nan", None),
        (FIELDS_SERVER_TIMING[TIMING], "disagg-start;ts=" + "9" * 400 + ".5", None),
        (FIELDS_SERVER_TIMING[TIMING], "xdisagg-start;ts=1.5", None),
    ],
)
def test_the_fields_name_one_arrival(timing, stamps, found):
    assert parse(timing, stamps) == found


@given(st.text() | st.text("disagg-start;ts=,. 0123456789"), st.text())
def test_no_field_is_too_odd(timing, stamps):
    parse(timing, stamps)


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
def test_the_event_is_found_however_it_is_cut(size):
    whole = CHUNK + DONE + EVENT
    stream = StreamedAnswer(BehindDone())
    for i in range(0, len(whole), size):
        stream.feed(whole[i : i + size], 1.0)
    assert stream.finish().text == "7"
    assert stream.behind.timing == FOUND
    assert not stream.wanting


@pytest.mark.parametrize(
    "behind",
    [
        b"",
        b"data: 7\n\n",
        b"data: not json\n\ndata: [DONE]\n\n" + CHUNK,
        b"event: trtllm.perf_metrics\ndata: {}\n\n",
        b'event: trtllm.perf_metrics\ndata: {"X-TRTLLM-Start-End-Time": 7}\n\n',
        b"event: trtllm.perf_metrics\ndata: " + b"[" * 50_000 + b"\n\n",
        EVENT[:-20],
        b": ping\n\n" * (MAX_BEHIND // 8 + 1) + EVENT,
    ],
)
def test_whatever_else_is_behind_the_end_changes_no_answer(behind):
    stream = StreamedAnswer(BehindDone())
    for piece in (CHUNK, DONE, *(behind[i : i + 1400] for i in range(0, len(behind), 1400))):
        if stream.wanting:
            stream.feed(piece, 1.0)
    assert stream.finish().text == "7"
    assert stream.behind.timing is None


# Through real sockets


async def _asked(info, *, stream, behind=EVENT, held_s=0.0):
    """Return three answers, what their requests asked for, and their number of connections."""
    asked = []
    peers = set()

    async def answer(request):
        asked.append(request.headers.get(RETURN))
        peers.add(request.transport.get_extra_info("peername"))
        name = f"c-{len(asked)}"
        if not stream:
            body = {
                "id": name,
                "choices": [{"index": 0, "message": {"content": name}, "finish_reason": "stop"}],
            }
            return json_response(200, json.dumps(body).encode(), FIELDS_SERVER_TIMING)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(
            CHUNK.replace(b'"c"', f'"{name}"'.encode()).replace(b'"7"', f'"{name}"'.encode()) + DONE
        )
        await asyncio.sleep(held_s)
        await response.write_eof(behind)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    prompt = (Message(role="user", content="?"),)
    request = Request(sample_id="1", prompt=prompt, sampling=SamplingParams(max_tokens=5))
    async with serve_app(app) as url:
        endpoint = Endpoint(base_url=url, model="m", info=info)
        async with kept(Client(endpoint, Limits(stream=stream))) as client:
            found = [await client.send(request) for _ in range(3)]
    assert all(isinstance(one, Response) for one in found)
    return [one for one in found if isinstance(one, Response)], asked, len(peers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("info", [{}, {"perf_metrics": {}}])
async def test_what_was_asked_for_is_kept_and_connections_are_used_again(info, stream):
    answers, asked, connections = await _asked(info, stream=stream)
    wanted = bool(info)
    assert asked == ["1" if wanted else None] * 3
    assert [one.attempts[-1].timing for one in answers] == [FOUND if wanted else None] * 3
    assert [one.text for one in answers] == ["c-1", "c-2", "c-3"]
    assert connections == 1


@pytest.mark.parametrize("behind", [b"", b": bye\n\n", b"data: {}\n\n" * 20_000])
async def test_streams_of_others_end_as_before(behind):
    answers, _, connections = await _asked({"perf_metrics": {}}, stream=True, behind=behind)
    assert [one.attempts[-1].timing for one in answers] == [None] * 3
    assert [len(one.attempts) for one in answers] == [1, 1, 1]
    assert connections == 1


@pytest.mark.slow
async def test_an_event_that_does_not_come_is_waited_for_a_second():
    answers, _, connections = await _asked({"perf_metrics": {}}, stream=True, held_s=30.0)
    assert [one.attempts[-1].timing for one in answers] == [None] * 3
    assert all(1.0 <= one.attempts[-1].end_s - one.attempts[-1].start_s < 10.0 for one in answers)
    assert connections == 3
