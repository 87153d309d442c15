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
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop
from answers import STREAM_HEAD, Streamed, Whole, http, wants_stream
from cores import SERVER, pin, raise_open_files

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:\s*100-continue", re.IGNORECASE)
_GETS = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","object":"model"}]}',
    b"/version": b'{"version":"0"}',
}


class Counts:
    """Counts of the clients' requests since the last reset."""

    def __init__(self) -> None:
        self.requests = self.in_progress = self.max_in_progress = self.connections = 0
        self.watched: int | None = None
        self.cpu_s_at_first: float | None = None

    def received(self) -> None:
        """Count a request for a completion that has arrived whole."""
        self.requests += 1
        self.in_progress += 1
        if self.in_progress > self.max_in_progress:
            self.max_in_progress = self.in_progress
        if self.watched is not None:
            self.cpu_s_at_first, self.watched = _cpu_s(self.watched), None

    def answered(self) -> None:
        """Count an answer that was passed to the system, or whose client is gone."""
        self.in_progress -= 1

    def reset(self) -> None:
        """Forget everything except the requests in progress."""
        self.requests = self.connections = 0
        self.max_in_progress = self.in_progress
        self.watched = self.cpu_s_at_first = None

    def told(self) -> bytes:
        """Return the counts as JSON."""
        names = ("requests", "max_in_progress", "connections", "cpu_s_at_first")
        return json.dumps({name: getattr(self, name) for name in names}).encode()


def _cpu_s(pid: int) -> float | None:
    """Return user and system time of all threads of a process so far.

    None where the system does not report it (no Linux).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    """The state shared by all connections: the counts, the prepared answers, the latency."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency_ms: float, chunk_ms: int) -> None:
        self.loop, self.latency_s = loop, latency_ms / 1000
        self.counts = Counts()
        self.ticker = Ticker(loop, chunk_ms) if chunk_ms else None
        self.whole = {
            b"/v1/completions": Whole(chat=False),
            b"/v1/chat/completions": Whole(chat=True),
        }
        self.streamed = {
            b"/v1/completions": Streamed(chat=False),
            b"/v1/chat/completions": Streamed(chat=True),
        }

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
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
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
        if wants_stream(body):
            reply = lambda: self._stream(service.streamed[path], body)  # noqa: E731
        else:
            answer = service.whole[path].to(body)
            reply = lambda: self._send(answer)  # noqa: E731
        if service.latency_s:
            service.loop.call_later(service.latency_s, reply)
        else:
            reply()

    def _send(self, answer: bytes) -> None:
        self.write(answer)
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


async def serve(latency_ms: float, chunk_ms: int) -> None:
    """Print a free port of the loopback and serve on it until standard input ends."""
    loop = asyncio.get_running_loop()
    service = Service(loop, latency_ms, chunk_ms)
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
    given = parser.parse_args()
    pin(SERVER)
    raise_open_files()
    gc.disable()  # nothing here makes reference cycles that grow
    uvloop.run(serve(given.latency_ms, given.chunk_ms))


if __name__ == "__main__":
    main()
