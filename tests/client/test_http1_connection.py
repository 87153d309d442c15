"""Test one connection with answers of any content, cut into pieces anywhere."""

import asyncio
import gzip
import ssl
import zlib
from collections.abc import Awaitable
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.client.http1.connection import MAX_HEAD, Http1Connection
from serve_eval.client.transport import BadHttp, CertificateRefused, Disconnected
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.client.wire_format.reply import Reply, TooLarge

BODY = b'{"id": "1", "choices": [{"text": "seven", "finish_reason": "stop"}]}'
EVENTS = b'data: {"choices": [{"text": "seven", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def _sized(body):
    return LENGTH % len(body) + body


class Wire:
    """A transport that goes nowhere and reports its end to its line immediately."""

    def __init__(self):
        self.written = b""
        self.line = None

    def write(self, data):
        self.written += data

    def abort(self):
        line, self.line = self.line, None
        if line is not None:
            line.connection_lost(None)


def _with_line(body, *, limit=10_000):
    """Return the result of `body` for a line on which a request was just sent, and its reply."""

    async def main():
        line, wire = Http1Connection(set(), {}), Wire()
        wire.line = line
        line.connection_made(cast("asyncio.Transport", wire))
        reply = Reply(asyncio.get_running_loop().create_future(), limit=limit, now=0.0)
        line.send(b"GET / HTTP/1.1\r\n\r\n", reply)
        assert wire.written == b"GET / HTTP/1.1\r\n\r\n"
        result = body(line, reply)
        return await result if isinstance(result, Awaitable) else result

    return asyncio.run(main())


def _receive(*pieces, limit=10_000):
    def feed(line, reply):
        for piece in pieces:
            line.data_received(piece)
        return line, reply

    return cast("tuple[Http1Connection, Reply]", _with_line(feed, limit=limit))


def _chunks(*parts):
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


SOUND = {
    "length": HEAD + _sized(BODY),
    "chunked": HEAD + CHUNKED + _chunks(BODY[:5], BODY[5:]),
    "chunks with extensions and a trailer": (
        HEAD + CHUNKED + b"%x;a=b\r\n%b\r\n0\r\nX-T: 1\r\n\r\n" % (len(BODY), BODY)
    ),
    "after 100 and 103": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + HEAD
        + _sized(BODY)
    ),
    "gzip": HEAD + b"Content-Encoding: gzip\r\n" + _sized(gzip.compress(BODY, mtime=0)),
    "deflate": HEAD + b"Content-Encoding: Deflate\r\n" + _sized(zlib.compress(BODY)),
    "identity": HEAD + b"content-encoding: identity\r\n" + _sized(BODY),
    "odd case": (
        b"HTTP/1.1 200\r\nCONTENT-type: application/json\r\ncontent-LENGTH: %d\r\n\r\n" % len(BODY)
        + BODY
    ),
}


@pytest.mark.parametrize("name", SOUND)
@given(cuts=st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=40)
def test_an_answer_is_the_same_wherever_it_is_cut(name, cuts):
    data = SOUND[name]
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    line, reply = _receive(*(data[a:b] for a, b in pairwise(edges)))
    assert reply.ended.done()
    assert (reply.error, reply.status, reply.content, reply.whole) == (None, 200, BODY, True)
    assert line.usable


@given(cuts=st.lists(st.integers(0, 400), max_size=8), chunked=st.booleans())
@settings(max_examples=60)
def test_a_stream_is_the_same_wherever_it_is_cut(cuts, chunked):
    body = CHUNKED + _chunks(EVENTS[:20], EVENTS[20:]) if chunked else LENGTH % len(EVENTS) + EVENTS
    data = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n" + body
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    async def feed(line, reply):
        for a, b in pairwise(edges):
            line.data_received(data[a:b])
        await reply.ended
        return line, reply

    line, reply = _with_line(feed)
    assert (reply.error, reply.whole, line.usable) == (None, True, True)
    assert reply.stream.finish().text == "seven"


@given(
    st.lists(
        st.binary(max_size=80) | st.sampled_from([HEAD, CHUNKED, b"\r\n", b"5\r\nhello\r\n", BODY]),
        max_size=8,
    )
)
@settings(max_examples=300)
def test_no_bytes_raise_and_an_end_is_always_found(pieces):
    def feed(line, reply):
        for piece in pieces:
            line.data_received(piece)
        line.abort()
        return reply

    reply = _with_line(feed)
    assert reply.ended.done()
    assert reply.error is None or isinstance(reply.error, BadHttp | Disconnected | InvalidResponse)


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", BadHttp, "no HTTP answer"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            BadHttp,
            "another protocol",
        ),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", BadHttp, "no HTTP answer"),
        (
            HEAD + b"Content-Length: 1\r\n" + CHUNKED + b"1\r\na\r\n0\r\n\r\n",
            BadHttp,
            "no HTTP answer",
        ),
        (HEAD + CHUNKED + b"zz\r\n", BadHttp, "no HTTP answer"),
        (HEAD + b"X: " + b"y" * MAX_HEAD, BadHttp, f"a head of more than {MAX_HEAD} bytes"),
        (HEAD + b"X: " + b"y" * MAX_HEAD + b"\r\n" + _sized(BODY), BadHttp, "a head of more than"),
        (
            HEAD + b"Content-Encoding: br\r\n" + LENGTH % 3 + b"abc",
            InvalidResponse,
            "'br', which was not requested",
        ),
        (
            HEAD + b"Content-Encoding: gzip\r\n" + LENGTH % 3 + b"abc",
            InvalidResponse,
            "cannot be decompressed",
        ),
        (
            HEAD + b"Content-Encoding: gzip\r\n" + LENGTH % 20 + gzip.compress(BODY)[:20],
            InvalidResponse,
            "is incomplete",
        ),
        (
            HEAD + b"Content-Encoding: gzip\r\n" + _sized(gzip.compress(BODY) + b"more"),
            InvalidResponse,
            "after its end",
        ),
        (b"HTTP/1.1 099 What\r\n" + _sized(BODY), BadHttp, "no HTTP answer"),
        (HEAD + LENGTH % 10_001 + b"x" * 10_001, TooLarge, "larger than 10000 bytes"),
        (
            HEAD
            + b"Content-Encoding: gzip\r\n"
            + LENGTH % len(gzip.compress(bytes(10_001)))
            + gzip.compress(bytes(10_001)),
            TooLarge,
            "larger than 10000 bytes",
        ),
    ],
)
def test_what_is_no_answer_is_said(data, error, said):
    for pieces in ([data], [data[i : i + 1000] for i in range(0, len(data), 1000)]):
        _, reply = _receive(*pieces)
        assert isinstance(reply.error, error)
        assert said in str(reply.error)


def test_an_endless_row_of_informational_answers_is_given_up():
    _, reply = _receive(*[b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"] * 3000)
    assert isinstance(reply.error, BadHttp)


def test_a_trailer_without_end_is_given_up():
    _, reply = _receive(HEAD + CHUNKED + b"1\r\na\r\n0\r\nX: ", *[b"y" * 1400] * 100)
    assert isinstance(reply.error, BadHttp)
    assert "outside any body" in str(reply.error)


def test_an_informational_answer_has_no_body():
    _, reply = _receive(b"HTTP/1.1 199 Hm\r\nContent-Length: 5\r\n\r\nhello" + SOUND["length"])
    assert reply.error is not None or reply.content == BODY


def test_a_connection_that_is_gone_holds_no_answer():
    line, reply = _receive(HEAD + b"Connection: close\r\n" + _sized(BODY))
    line.connection_lost(None)
    assert line._reply is None
    assert reply.content == BODY


def test_framing_without_end_counts_as_size():
    _, reply = _receive(HEAD + CHUNKED, *[b"1;" + b"x" * 5000 + b"\r\na\r\n"] * 30)
    assert isinstance(reply.error, TooLarge)


@pytest.mark.parametrize(
    "data",
    [
        SOUND["length"] * 2,
        SOUND["length"] + b"HTTP/1.1 408 Request Time-out\r\n",
        SOUND["length"] + b"garbage",
        HEAD + b"Connection: close\r\n" + _sized(BODY),
        b"HTTP/1.0 200 OK\r\n" + _sized(BODY),
    ],
    ids=["twice", "and the beginning of another", "and garbage", "Connection: close", "HTTP/1.0"],
)
def test_a_connection_that_may_not_be_used_again_is_not(data):
    line, reply = _receive(data)
    assert (reply.error, reply.content, reply.whole) == (None, BODY, True)
    assert not line.usable


def test_what_comes_while_nothing_was_asked_ends_the_connection():
    def late(line, reply):
        line.data_received(SOUND["length"])
        line.rest(1.0)
        assert line.usable
        line.data_received(b"H")
        return line.usable

    assert _with_line(late) is False


@pytest.mark.parametrize(
    ("data", "error", "content", "said"),
    [
        (b"", None, Disconnected, "ended before an answer came"),
        (b"HTTP/1.1 200", None, Disconnected, "ended before an answer came"),
        (HEAD + LENGTH % 500 + BODY, None, Disconnected, "ended within the answer"),
        (HEAD + CHUNKED + b"5\r\nhello\r\n", None, Disconnected, "ended within the answer"),
        (
            HEAD + b"\r\n" + BODY,
            ConnectionResetError("reset"),
            Disconnected,
            "(ConnectionResetError: reset)",
        ),
        (HEAD + b"\r\n" + BODY, None, BODY, ""),
        (
            b"",
            ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] alert"),
            CertificateRefused,
            "the server demands a client certificate",
        ),
    ],
)
def test_where_a_connection_ends(data, error, content, said):
    def lose(line, reply):
        if data:
            line.data_received(data)
        line.connection_lost(error)
        return reply

    reply = _with_line(lose)
    assert reply.ended.done()
    if isinstance(content, bytes):
        assert (reply.error, reply.content) == (None, content)
    else:
        assert isinstance(reply.error, content)
        assert said in str(reply.error)


def test_a_request_on_a_connection_that_is_gone_is_not_sent():
    async def main():
        line, wire = Http1Connection(set(), {}), Wire()
        line.connection_made(cast("asyncio.Transport", wire))
        line.connection_lost(None)
        reply = Reply(asyncio.get_running_loop().create_future(), limit=1, now=0.0)
        line.send(b"x", reply)
        assert wire.written == b""
        return reply

    error = asyncio.run(main()).error
    assert isinstance(error, Disconnected)
    assert "closed before the request was sent" in str(error)


@pytest.mark.parametrize("end", ["", "Connection: close\r\n"])
@pytest.mark.parametrize("more", [b"garbage", HEAD + b"Content-Length: 0\r\n\r\n"])
async def test_bytes_behind_a_whole_answer_tell_that_a_connection_is_out_of_step(end, more):
    strays = []
    line, wire = Http1Connection(set(), {}, 1, lambda line, why: strays.append(line)), Wire()
    wire.line = line
    line.connection_made(cast("asyncio.Transport", wire))
    reply = Reply(asyncio.get_running_loop().create_future(), limit=10_000, now=0.0)
    line.send(b"GET / HTTP/1.1\r\n\r\n", reply)
    line.data_received(HEAD + end.encode() + _sized(BODY) + more)
    assert (reply.error, reply.whole, line.usable) == (None, True, False)
    assert strays[:1] == [line]


@pytest.mark.parametrize(("more", "refused"), [(0, False), (1, True)])
def test_what_belongs_to_no_body_may_be_as_long_as_a_head(more, refused):
    start = HEAD + CHUNKED + b"1;"
    pieces = [start + b"x" * (MAX_HEAD - len(start) + more), b"x", b"\r\na\r\n0\r\n\r\n"]
    _, reply = _receive(*pieces, limit=10**6)
    assert isinstance(reply.error, BadHttp) is refused
