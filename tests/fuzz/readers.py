"""Fuzz the readers of an endpoint's bytes, guided by coverage: `make fuzz`.

For any bytes in any pieces, the readers return an answer or raise InvalidResponse, and the pieces
make no difference. A connection that gets them always ends.
"""

import asyncio
import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports():
    from serve_eval.client import questions
    from serve_eval.client.http1.connection import Http1Connection
    from serve_eval.client.wire_format import refusal, wire
    from serve_eval.client.wire_format.bodies import split_thinking
    from serve_eval.client.wire_format.reply import Reply
    from serve_eval.client.wire_format.sse import EventLines
    from serve_eval.client.wire_format.stream import StreamedAnswer


def _said(pieces):
    answer = StreamedAnswer()
    with suppress(refusal.InvalidResponse):
        for piece in pieces:
            answer.feed(piece, 0.0)
        return answer.finish()
    return None


def _payloads(pieces):
    lines = EventLines()
    return [payload for piece in pieces for payload in lines.feed(piece) if payload] + lines.close()


def _reply(pieces):
    """Return a connection's result of the bytes until it is lost."""
    connection, reply = (
        Http1Connection(set(), {}),
        Reply(_loop.create_future(), limit=1000, now=0.0),
    )
    connection._reply = reply
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    assert reply.ended.done()
    if reply._timer is not None:
        reply._timer.cancel()
    return reply


def one_input(data):
    """Read the bytes as a body, as a stream in one piece, and as a stream cut in two."""
    with suppress(refusal.InvalidResponse):
        said = wire.decode(data, "application/json")
        split_thinking(said.text)
    assert refusal.describe(data)
    questions.model_ids(data)
    questions.find_version(data)
    cut = data[0] % (len(data) + 1) if data else 0
    pieces = [data[:cut], data[cut:]]
    assert _payloads([data]) == _payloads(pieces)
    assert _said([data]) == _said(pieces)
    for body in (data, b"HTTP/1.1 200 OK\r\n" + data):
        whole, cut_in_two = _reply([body]), _reply([body[:cut], body[cut:]])
        if whole.error is None and cut_in_two.error is None:
            assert (whole.status, whole.content) == (cut_in_two.status, cut_in_two.content)


_loop = asyncio.new_event_loop()

if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
