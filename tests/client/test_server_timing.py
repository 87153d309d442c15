"""Test the times that an orchestrator of main sends in the head or after [DONE]."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format.response_head import (
    MAX_BEHIND,
    RETURN,
    STAMPS,
    TIMING,
    BehindDone,
    parse,
)
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.launchers._http.server import json_response, serve_app
from serve_eval.schema import (
    Endpoint,
    Limits,
    Message,
    Request,
    Response,
    SamplingParams,
    ServerTiming,
)
from tests.client.kept import kept

FIELDS = {
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
EVENT = b"event: trtllm.perf_metrics\ndata: " + json.dumps(FIELDS).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("timing", "stamps", "found"),
    [
        (FIELDS[TIMING], FIELDS[STAMPS], FOUND),
        (None, FIELDS[STAMPS], ServerTiming(arrival=FOUND.arrival)),
        (
            "gen_kv_transfer;dur=-1",
            "ctx-start;ts=1.5,disagg-start;ts=2.123456",
            ServerTiming(arrival="2.123456"),
        ),
        (FIELDS[TIMING], None, None),
        (FIELDS[TIMING], "server-start;ts=12345.123456", None),
        (FIELDS[TIMING], "disagg-start;ts=1.5, disagg-start;ts=2.5", None),
        (FIELDS[TIMING], "disagg-start;ts=nan", None),
        (FIELDS[TIMING], "disagg-start;ts=" + "9" * 400 + ".5", None),
        (FIELDS[TIMING], "xdisagg-start;ts=1.5", None),
    ],
)
def test_the_fields_name_one_arrival(
    timing: str | None, stamps: str | None, found: ServerTiming | None
) -> None:
    assert parse(timing, stamps) == found


@given(st.text() | st.text("disagg-start;ts=,. 0123456789"), st.text())
def test_no_field_is_too_odd(timing: str, stamps: str) -> None:
    parse(timing, stamps)


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
def test_the_event_is_found_however_it_is_cut(size: int) -> None:
    whole = CHUNK + DONE + EVENT
    stream = StreamedAnswer(BehindDone())
    for i in range(0, len(whole), size):
        stream.feed(whole[i : i + size], 1.0)
    assert stream.finish().text == "7"
    assert stream.behind is not None
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
def test_whatever_else_is_behind_the_end_changes_no_answer(behind: bytes) -> None:
    stream = StreamedAnswer(BehindDone())
    for piece in (CHUNK, DONE, *(behind[i : i + 1400] for i in range(0, len(behind), 1400))):
        if stream.wanting:
            stream.feed(piece, 1.0)
    assert stream.finish().text == "7"
    assert stream.behind is not None
    assert stream.behind.timing is None


# Through real sockets


async def _asked(
    info: dict[str, object], *, stream: bool, behind: bytes = EVENT, held_s: float = 0.0
) -> tuple[list[Response], list[str | None], int]:
    """Return three answers, what their requests asked for, and their number of connections."""
    asked: list[str | None] = []
    peers = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get(RETURN))
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        name = f"c-{len(asked)}"
        if not stream:
            body = {
                "id": name,
                "choices": [{"index": 0, "message": {"content": name}, "finish_reason": "stop"}],
            }
            return json_response(200, json.dumps(body).encode(), FIELDS)
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
def test_what_was_asked_for_is_kept_and_connections_are_used_again(
    info: dict[str, object], stream: bool
) -> None:
    answers, asked, connections = asyncio.run(_asked(info, stream=stream))
    wanted = bool(info)
    assert asked == ["1" if wanted else None] * 3
    assert [one.attempts[-1].timing for one in answers] == [FOUND if wanted else None] * 3
    assert [one.text for one in answers] == ["c-1", "c-2", "c-3"]
    assert connections == 1


@pytest.mark.parametrize("behind", [b"", b": bye\n\n", b"data: {}\n\n" * 20_000])
def test_streams_of_others_end_as_before(behind: bytes) -> None:
    answers, _, connections = asyncio.run(_asked({"perf_metrics": {}}, stream=True, behind=behind))
    assert [one.attempts[-1].timing for one in answers] == [None] * 3
    assert [len(one.attempts) for one in answers] == [1, 1, 1]
    assert connections == 1


@pytest.mark.slow
def test_an_event_that_does_not_come_is_waited_for_a_second() -> None:
    answers, _, connections = asyncio.run(_asked({"perf_metrics": {}}, stream=True, held_s=30.0))
    assert [one.attempts[-1].timing for one in answers] == [None] * 3
    assert all(1.0 <= one.attempts[-1].end_s - one.attempts[-1].start_s < 10.0 for one in answers)
    assert connections == 3
