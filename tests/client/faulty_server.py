"""An HTTP server on a real loopback socket that fails as scripted.

It writes bytes instead of responses because a framework refuses to break HTTP. A script names one
act per request: a list in order of arrival (the last act repeats), or a function of the received
request. An act answers one request or breaks its connection. `FaultyServer.received` holds
everything that arrived.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    """A request: its number, counted from 1, its connection's number, and when it was read."""

    number: int
    connection: int
    at_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def request_id(self):
        return self.headers["x-request-id"]

    @property
    def question(self):
        """Return the prompt, or the text of the last message."""
        return (
            self.body["prompt"] if "prompt" in self.body else self.body["messages"][-1]["content"]
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """The request and the connection that an act works with."""

    request: Received
    writer: asyncio.StreamWriter

    async def write(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def finish(self):
        """Close the connection in order (FIN)."""
        self.writer.close()
        await self.writer.wait_closed()

    async def reset(self):
        """Break the connection (RST) after the written bytes have arrived."""
        await asyncio.sleep(0.01)
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Act = Callable[[Turn], Awaitable[None]]
Script = Sequence[Act] | Callable[[Received], Act]


class FaultyServer:
    """A server that listens as an async context manager.

    With `listening=False` it refuses connections until `listen` is called. `greeting` is sent on
    every new connection before the first request. `received` holds the requests, except those with
    which a client checks a connection: these are in `checks` and get a list of models.
    """

    def __init__(self, script, *, listening=True, greeting=b""):
        self._script, self._listening, self._greeting = script, listening, greeting
        self.received = []
        self.checks = []
        self.connections = 0
        self._tasks = set()
        self._open = set()
        self._server = None
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self._address = self._socket.getsockname()
        self.base_url = f"http://127.0.0.1:{self._address[1]}/v1"

    async def __aenter__(self):
        if self._listening:
            await self.listen()
        return self

    async def listen(self):
        """Start to accept connections, possibly again."""
        if self._socket.fileno() < 0:
            self._socket = socket.create_server(self._address)
        self._server = await asyncio.start_server(
            self._accept, sock=self._socket, limit=2**20, backlog=1024
        )

    def stop_listening(self):
        """Refuse connections from now on; open ones stay."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def __aexit__(
        self,
        kind,
        error,
        trace,
    ):
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections close in the next turn of the loop
        broken = [result for result in ended if isinstance(result, Exception)]
        if broken and error is None:
            raise broken[0]  # an act has a mistake in it

    def shut_idle_connections(self):
        """End every connection now, as a server does after its idle time limit."""
        for writer in self._open:
            # uvloop offers no socket that can be shut down.
            descriptor = os.dup(writer.get_extra_info("socket").fileno())
            with suppress(OSError), socket.socket(fileno=descriptor) as shared:
                shared.shutdown(socket.SHUT_RDWR)

    def _accept(self, reader, writer):
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader, writer):
        self._open.add(writer)
        self.connections += 1
        connection = self.connections
        try:
            writer.write(self._greeting)
            while (
                not writer.is_closing()
                and (request := await self._read(reader, connection)) is not None
            ):
                if request.method == "GET" and "x-request-id" in request.headers:
                    self.checks.append(request)
                    writer.write(http(b'{"object": "list", "data": []}'))
                    continue
                self.received.append(request)
                await self._act(request)(Turn(request, writer))
        except OSError:
            pass  # the client has hung up
        finally:
            self._open.discard(writer)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _read(self, reader, connection):
        """Return the next request of a connection, or None if the client has closed it."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            start, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        except asyncio.IncompleteReadError:
            return None
        method, path, _ = start.split(" ")
        number = len(self.received) + 1
        return Received(
            number, connection, time.monotonic(), method, path, headers, json.loads(body or b"{}")
        )

    def _act(self, request):
        if callable(self._script):
            return self._script(request)
        return self._script[min(request.number, len(self._script)) - 1]


# Bytes of answers


def http(
    body,
    status="200 OK",
    headers=None,
    *,
    length=None,
):
    """Return a whole HTTP answer, JSON unless `headers` say otherwise.

    `length` is the Content-Length that is announced.
    """
    told = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body) if length is None else length),
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def echo(request):
    """Return the text of a sound answer; it contains the question, which makes it unique."""
    return f"the answer to {request.question}"


def answer(request, text=None, finish="stop"):
    """Return the JSON of a sound answer to a completion or a chat; `text` replaces the echo."""
    said = echo(request) if text is None else text
    part = (
        {"text": said}
        if "prompt" in request.body
        else {"message": {"role": "assistant", "content": said}}
    )
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choices = [{"index": 0, **part, "finish_reason": finish}]
    return _json({"id": f"cmpl-{request.number}", "choices": choices, "usage": usage})


def chunk(request, text, finish=None):
    """Return one event of a streamed answer."""
    part = {"text": text} if "prompt" in request.body else {"delta": {"content": text}}
    return (
        b"data: "
        + _json({"choices": [{"index": 0, **part, "finish_reason": finish}], "usage": None})
        + b"\n\n"
    )


def whole_stream(request):
    """Return all events of a sound answer."""
    return chunk(request, echo(request)) + chunk(request, "", "stop") + DONE


def chunked(data):
    """Return data as one chunk of a body of unknown length."""
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _json(value):
    return json.dumps(value, separators=(",", ":")).encode()


# Acts that answer


async def sound(turn):
    """Send the right answer as JSON."""
    await turn.write(http(answer(turn.request)))


async def sound_stream(turn):
    """Send the right answer as an event stream with one event per word."""
    words = echo(turn.request).split(" ")
    events = [chunk(turn.request, word if not i else f" {word}") for i, word in enumerate(words)]
    events += [chunk(turn.request, "", "stop"), DONE]
    await turn.write(STREAM_HEAD)
    for event in events:
        await turn.write(chunked(event))
    await turn.write(LAST_CHUNK)


def says(text, finish):
    """Return an act that answers with this content, which may be null, and this finish_reason."""

    async def act(turn):
        body = json.loads(answer(turn.request, finish=finish))
        part = body["choices"][0]
        if "text" in part:
            part["text"] = text
        else:
            part["message"]["content"] = text
        await turn.write(http(_json(body)))

    return act


def replies(body, status="200 OK", **headers):
    """Return an act that sends this body to any request.

    `content_type="text/plain"` is the header Content-Type.
    """
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}

    async def act(turn):
        await turn.write(http(body, status, named))

    return act


def sends(data):
    """Return an act that sends these bytes, valid HTTP or not, and ends the connection."""

    async def act(turn):
        await turn.write(data)
        await turn.finish()

    return act


def answers_as(content_type):
    """Return an act that sends the right answer as JSON under another content type."""

    async def act(turn):
        await turn.write(http(answer(turn.request), headers={"Content-Type": content_type}))

    return act


def refuses(status, message, **headers):
    """Return an act that sends an error status with trtllm-serve's error object."""
    return replies(
        _json({"object": "error", "message": message, "code": int(status[:3])}), status, **headers
    )


def fails_then(faults, fault, then):
    """Return a script with this number of faults, followed by another act without a limit."""
    return [*[fault] * faults, then]


async def without_length(turn):
    """Send the right answer and end it by closing the connection, as HTTP/1.0 does."""
    await turn.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer(turn.request)
    )
    await turn.finish()


async def informs_first(turn):
    """Send 100 Continue and 103 Early Hints before the right answer."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
    await turn.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    await asyncio.sleep(0.005)
    await turn.write(hints)
    await asyncio.sleep(0.005)
    await turn.write(hints + http(answer(turn.request)))


def later(seconds, then):
    """Return an act that waits before another act."""

    async def act(turn):
        await asyncio.sleep(seconds)
        await then(turn)

    return act


def in_reverse(count):
    """Return an act that holds requests until `count` have come, then answers the last first."""
    waiting = []

    async def act(turn):
        waiting.append(mine := asyncio.Event())
        if len(waiting) == count:
            mine.set()
        await mine.wait()
        await turn.write(http(answer(turn.request)))
        waiting.remove(mine)
        if waiting:
            await asyncio.sleep(0.01)
            waiting[-1].set()

    return act


async def many_events(turn):
    """Stream 100 000 events of one character each."""
    event = chunked(chunk(turn.request, "x"))
    await turn.write(STREAM_HEAD)
    for _ in range(1000):
        await turn.write(event * 100)
    await turn.write(chunked(chunk(turn.request, "", "stop")) + chunked(DONE) + LAST_CHUNK)


# Acts that answer too much


async def twice_at_once(turn):
    """Send the right answer twice in one write."""
    await turn.write(http(answer(turn.request)) * 2)


def twice_after(delay_s):
    """Return an act that sends the right answer, and again when the connection is idle."""

    async def act(turn):
        await turn.write(http(answer(turn.request)))
        await asyncio.sleep(delay_s)
        await turn.write(http(answer(turn.request)))

    return act


def then_the_beginning_of_another(delay_s):
    """Return an act that sends the right answer, and later the first bytes of another."""

    async def act(turn):
        await turn.write(http(answer(turn.request)))
        await asyncio.sleep(delay_s)
        await turn.write(b"HTTP/1.1 200 OK\r\nContent-Ty")

    return act


async def then_408(turn):
    """Send the right answer, then a 408 for the request that does not come.

    Proxies send this before they hang up.
    """
    await turn.write(http(answer(turn.request)))
    await asyncio.sleep(0.02)
    await turn.write(http(b"too slow", "408 Request Time-out", {"Content-Type": "text/plain"}))


@dataclass(frozen=True, slots=True)
class Bomb:
    """Gzipped zeros, with their unpacked size and the bytes sent."""

    unpacked: int
    packed: bytes

    async def __call__(self, turn):
        await turn.write(http(self.packed, headers={"Content-Encoding": "gzip"}))


def gzip_bomb(mebibytes=64):
    """Return the bomb, packed in pieces: the test must not hold what the client must not hold."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        for _ in range(mebibytes):
            file.write(bytes(2**20))
    return Bomb(mebibytes * 2**20, packed.getvalue())


async def gzipped(turn):
    """Send the right answer gzipped, although the request did not ask for that."""
    await turn.write(
        http(gzip.compress(answer(turn.request)), headers={"Content-Encoding": "gzip"})
    )


async def endless(turn):
    """Send a body that does not end."""
    await turn.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    while True:
        await turn.write(chunked(b" " * 65536))


async def endless_stream(turn):
    """Stream an answer that does not end."""
    await turn.write(STREAM_HEAD)
    events = chunked(chunk(turn.request, "x") * 500)
    while True:
        await turn.write(events)


def then_endless(events):
    """Return an act that streams an answer and repeats these events after its end."""

    async def act(turn):
        await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request)))
        while True:
            await turn.write(chunked(events(turn.request) * 100))

    return act


# Acts that answer too little


async def hangs_up(turn):
    """Read the request and close the connection (FIN)."""
    await turn.finish()


async def resets(turn):
    """Read the request and break the connection (RST)."""
    await turn.reset()


async def resets_before_the_body(turn):
    """Send the head of an answer, then RST."""
    await turn.write(http(b"", length=1000))
    await turn.reset()


async def resets_in_the_body(turn):
    """Send half an answer, then RST."""
    whole = http(answer(turn.request))
    await turn.write(whole[:-40])
    await turn.reset()


async def closes_in_the_body(turn):
    """Send half an answer, then FIN."""
    whole = http(answer(turn.request))
    await turn.write(whole[:-40])
    await turn.finish()


async def closes_in_the_stream(turn):
    """Send some events, then FIN without the last chunk."""
    await turn.write(STREAM_HEAD + chunked(chunk(turn.request, "half an")))
    await turn.finish()


async def ends_the_stream_early(turn):
    """Send some events and a proper end, but neither a finish_reason nor [DONE]."""
    await turn.write(STREAM_HEAD + chunked(chunk(turn.request, "half an")) + LAST_CHUNK)


async def resets_after_the_finish(turn):
    """Send every event up to the finish_reason, then RST instead of [DONE]."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request).removesuffix(DONE)))
    await turn.reset()


async def silent_after_the_finish(turn):
    """Send a finish_reason, but neither the usage, [DONE] nor the end of the body."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request).removesuffix(DONE)))
    await asyncio.sleep(60)


async def silent_after_done(turn):
    """Send every event, but not the end of the body."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request)))
    await asyncio.sleep(60)


async def pings_after_done(turn):
    """Send every event, then a comment every 50 ms instead of the end of the body."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request)))
    while True:
        await asyncio.sleep(0.05)
        await turn.write(chunked(b": ping\n\n"))


async def loses_the_stream_and_stays(turn):
    """Send only [DONE] to a request for a stream, and do not end the body."""
    if turn.request.body.get("stream"):
        await turn.write(STREAM_HEAD + chunked(DONE))
        await asyncio.sleep(60)
    else:
        await sound(turn)


async def loses_the_stream(turn):
    """Send only [DONE] to a request for a stream, as trtllm-serve's orchestrator does.

    Other requests get the right answer.
    """
    if turn.request.body.get("stream"):
        await turn.write(STREAM_HEAD + chunked(DONE) + LAST_CHUNK)
    else:
        await sound(turn)


async def cut_json(turn):
    """Send half the JSON as if it were whole."""
    await turn.write(http(answer(turn.request)[:-40]))


async def silent(turn):
    """Send nothing."""
    await asyncio.sleep(60)


async def silent_after_the_head(turn):
    """Send the head of an answer and nothing more."""
    await turn.write(http(b"", length=1000))
    await asyncio.sleep(60)


async def stalls(turn):
    """Send some events and nothing more."""
    await turn.write(
        STREAM_HEAD
        + chunked(chunk(turn.request, "half"))
        + chunked(chunk(turn.request, " an answer"))
    )
    await asyncio.sleep(60)


async def trickles(turn):
    """Send a body at one byte per 20 ms, which is never silent and never complete."""
    await turn.write(http(b"", length=1_000_000))
    while True:
        await turn.write(b"x")
        await asyncio.sleep(0.02)


def keeps_open(*sent):
    """Return an act that sends these pieces in turn and repeats the last every 20 ms.

    The connection is never silent and carries no data.
    """

    async def act(turn):
        for piece in sent:
            await turn.write(piece)
        while True:
            await asyncio.sleep(0.02)
            await turn.write(sent[-1])

    return act


# Acts that are not HTTP


async def two_lengths(turn):
    """Send the right answer under two Content-Lengths, the first of them too short."""
    body = answer(turn.request)
    await turn.write(http(body, headers={"content-length": "10"}))


async def long_header(turn):
    """Send the right answer with a header of 100 KB."""
    await turn.write(http(answer(turn.request), headers={"X-Long": "x" * 100_000}))


async def switches_protocols(turn):
    """Send 101 and the right answer, as if in another protocol."""
    await turn.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    )
    await turn.write(http(answer(turn.request)))
