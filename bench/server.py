"""A server that is not the bottleneck: a bare asyncio.Protocol on uvloop with its own core.

It answers /v1/completions and /v1/chat/completions after a fixed latency, streams on request, and
counts: GET /stats, POST /reset. POST /watch with a process id makes it record the CPU time of that
process when the first request for a completion arrives. It ends with its standard input, so it
never outlives the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import sys
from collections.abc import Callable
from typing import cast

import uvloop
from answers import (
    STREAM_HEAD,
    Likelihoods,
    Streamed,
    Whole,
    http,
    stamp,
    wants_logprobs,
    wants_stream,
)
from cores import SERVER, pin, raise_open_files
from counts import Counts
from release import Release

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:\s*100-continue", re.IGNORECASE)
_GETS = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","object":"model"}]}',
    b"/version": b'{"version":"0"}',
}


class Ticker:
    """A timer that feeds all streams.

    Each stream is served every `chunk_ms`. The streams are spread over this span in steps of a
    millisecond, so that chunks arrive evenly and not those of all streams together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, chunk_ms: int) -> None:
        self._loop, self._slots = loop, [set[Stream]() for _ in range(chunk_ms)]
        self._next, self._at, self._running = 0, 0.0, False
        self._joined = 0

    def join(self, stream: Stream) -> None:
        """Serve a stream from now on."""
        self._slots[self._joined % len(self._slots)].add(stream)
        self._joined += 1
        if not self._running:
            self._running, self._at = True, self._loop.time()
            self._wait()

    def _wait(self) -> None:
        self._at += 0.001
        self._loop.call_at(self._at, self._tick)

    def _tick(self) -> None:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.difference_update([stream for stream in list(slot) if not stream.step()])
        self._running = any(self._slots)
        if self._running:
            self._wait()


class Stream:
    """A streamed answer in progress."""

    def __init__(self, connection: Connection, answer: Streamed, body: bytes) -> None:
        self._connection, self._answer, self._left = connection, answer, answer.length(body) - 1
        self._end = answer.end(body)
        connection.write(STREAM_HEAD + answer.first(body))

    def step(self) -> bool:
        """Send the next chunk or the end, and return True if more follows."""
        if self._left and not self._connection.closed:
            self._left -= 1
            self._connection.write(self._answer.piece)
            return True
        self._connection.write(self._end)
        self._connection.finish()
        return False

    def burst(self) -> None:
        """Send the rest in one write."""
        self._connection.write(self._answer.piece * self._left + self._end)
        self._connection.finish()


class Service:
    """The state shared by all connections: the counts, the prepared answers, the delays.

    `stamped`: the id of each answer in one piece holds the time at which it is sent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        release: Release,
        *,
        chunk_ms: int = 0,
        whole: int = 0,
        stamped: bool = False,
    ) -> None:
        self.loop, self.release, self.stamped = loop, release, stamped
        self.counts = Counts()
        self.ticker = Ticker(loop, chunk_ms) if chunk_ms else None
        routes = {b"/v1/completions": False, b"/v1/chat/completions": True}
        self.whole = {path: Whole(chat=chat, whole=whole) for path, chat in routes.items()}
        self.streamed = {path: Streamed(chat=chat, whole=whole) for path, chat in routes.items()}
        self.likelihoods = Likelihoods()

    def other(self, path: bytes, body: bytes) -> bytes:
        """Return the answer to a request that is not for a completion."""
        if path == b"/stats":
            return http(self.counts.told())
        if path == b"/reset":
            self.counts.reset()
        elif path == b"/watch":
            self.counts.watched = int(body)
        elif path not in (b"/health", *_GETS):
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        return http(_GETS.get(path, b"{}"))


class Connection(asyncio.Protocol):
    """A connection that splits its input into requests and answers them in turn.

    It supports as much HTTP/1.1 as the clients here need.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._buffer, self._busy, self.closed = service, b"", False, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._service.counts.connections += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        """Send data unless the client is gone."""
        if not self.closed:
            self._service.counts.bytes_out += len(data)
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._service.counts.bytes_in += len(data)
        self._buffer = self._buffer + data if self._buffer else data
        if not self._busy:
            self._next()

    def _next(self) -> None:
        """Take the next request out of the buffer if it is whole."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(buffer, 0, end)
        body_at = end + 4
        after = body_at + (int(length.group(1)) if length else 0)
        if len(buffer) < after:
            if _EXPECTS.search(buffer, 0, end) and len(buffer) == body_at:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        path = buffer[buffer.index(b" ") + 1 : buffer.index(b" HTTP/1.1")]
        self._buffer = buffer[after:]
        self._answer(path, buffer[body_at:after])

    def _answer(self, path: bytes, body: bytes) -> None:
        service = self._service
        if path not in service.whole:
            self.write(service.other(path, body))
            if self._buffer:
                self._next()
            return
        self._busy = True
        service.counts.received()
        reply: Callable[[], None]
        if wants_logprobs(body):
            likelihoods = service.likelihoods.to(body)
            reply = lambda: self._send(likelihoods)  # noqa: E731
        elif wants_stream(body):
            reply = lambda: self._stream(service.streamed[path], body)  # noqa: E731
        else:
            answer = service.whole[path].to(body)
            reply = lambda: self._send(answer)  # noqa: E731
        if service.release.latency_s:
            service.loop.call_later(service.release.after(service.loop.time()), reply)
        else:
            reply()

    def _send(self, answer: bytes) -> None:
        self.write(stamp(answer) if self._service.stamped else answer)
        self.finish()

    def _stream(self, answer: Streamed, body: bytes) -> None:
        stream = Stream(self, answer, body)
        if self._service.ticker is None:
            stream.burst()
        else:
            self._service.ticker.join(stream)

    def finish(self) -> None:
        """Complete the answer and continue with the next request."""
        self._service.counts.answered()
        self._busy = False
        if self._buffer:
            self._next()


async def serve(given: argparse.Namespace) -> None:
    """Print a free port of the loopback and serve on it until standard input ends."""
    loop = asyncio.get_running_loop()
    release = Release(given.latency_ms / 1000, spread=given.spread, step_s=given.step_ms / 1000)
    service = Service(
        loop, release, chunk_ms=given.chunk_ms, whole=given.tokens, stamped=given.stamped
    )
    server = await loop.create_server(lambda: Connection(service), "127.0.0.1", 0, backlog=8192)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: os.read(0, 4096) or ended.set())
    await ended.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument(
        "--chunk-ms", type=int, default=0, help="between the chunks of a stream; 0: all at once"
    )
    parser.add_argument("--tokens", type=int, default=0, help="of an answer; 0: as always")
    parser.add_argument("--spread", action="store_true", help="exponential latencies")
    parser.add_argument("--step-ms", type=float, default=0, help="answers leave at multiples of it")
    parser.add_argument("--stamped", action="store_true", help="put the time into each answer's id")
    given = parser.parse_args()
    pin(SERVER)
    raise_open_files()
    gc.disable()  # nothing here makes reference cycles that grow
    uvloop.run(serve(given))


if __name__ == "__main__":
    main()
