"""An HTTP server that fails as it is told to, on a real loopback socket.

It writes bytes and not responses, since a framework would refuse to break HTTP. A script names one
act per request: a list in the order in which requests arrive (the last act repeats), or a function
of what was received. An act answers one request or breaks its connection. `FaultyServer.received`
holds everything that arrived.
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
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Received:
    """One request: its number, counted from 1, the number of its connection, and when it was
    read.
    """

    number: int
    connection: int
    at_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def question(self) -> str:
        """The text of the prompt, or of its last message."""
        asked: str = (
            self.body["prompt"] if "prompt" in self.body else self.body["messages"][-1]["content"]
        )
        return asked


@dataclass(frozen=True, slots=True)
class Turn:
    """What an act works with: the request, and the connection that waits for an answer."""

    request: Received
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def finish(self) -> None:
        """Closes the connection in order (FIN)."""
        self.writer.close()
        await self.writer.wait_closed()

    async def reset(self) -> None:
        """Breaks the connection (RST), once what was written has arrived."""
        await asyncio.sleep(0.01)
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Act = Callable[[Turn], Awaitable[None]]
Script = Sequence[Act] | Callable[[Received], Act]


class FaultyServer:
    """Listens as an async context manager; with `listening=False` it refuses connections until
    `listen` is called.

    `greeting` is sent on every new connection, before anything was asked. `received` are the
    requests but for those by which a client checks a connection: `checks`, which get a list of
    models.
    """

    def __init__(self, script: Script, *, listening: bool = True, greeting: bytes = b"") -> None:
        self._script, self._listening, self._greeting = script, listening, greeting
        self.received: list[Received] = []
        self.checks: list[Received] = []
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self._address = self._socket.getsockname()
        self.base_url = f"http://127.0.0.1:{self._address[1]}/v1"

    async def __aenter__(self) -> Self:
        if self._listening:
            await self.listen()
        return self

    async def listen(self) -> None:
        """Starts to accept connections, perhaps once more."""
        if self._socket.fileno() < 0:
            self._socket = socket.create_server(self._address)
        self._server = await asyncio.start_server(
            self._accept, sock=self._socket, limit=2**20, backlog=1024
        )

    def stop_listening(self) -> None:
        """Refuses connections from now on. Those that are open stay."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # connections close in the next turn of the loop
        broken = [result for result in ended if isinstance(result, Exception)]
        if broken and error is None:
            raise broken[0]  # an act with a mistake in it

    def shut_idle_connections(self) -> None:
        """Ends every connection at once, as a server whose patience with idle connections is
        over.
        """
        for writer in self._open:
            descriptor = os.dup(
                writer.get_extra_info("socket").fileno()
            )  # uvloop hands out no socket to shut down
            with suppress(OSError), socket.socket(fileno=descriptor) as shared:
                shared.shutdown(socket.SHUT_RDWR)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> Received | None:
        """The next request of a connection; None when the client has closed it."""
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

    def _act(self, request: Received) -> Act:
        if callable(self._script):
            return self._script(request)
        return self._script[min(request.number, len(self._script)) - 1]


# -------------------------------------------------------------------------------------------------
# what is written


def http(
    body: bytes,
    status: str = "200 OK",
    headers: Mapping[str, str] | None = None,
    *,
    length: int | None = None,
) -> bytes:
    """A whole HTTP answer, JSON unless `headers` say otherwise. `length` is the Content-Length that
    is told.
    """
    told = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body) if length is None else length),
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def echo(request: Received) -> str:
    """The text of a sound answer: it names the question, so that it can be told from any other."""
    return f"the answer to {request.question}"


def answer(request: Received, text: str | None = None, finish: str | None = "stop") -> bytes:
    """The JSON of a sound answer to a completion or a chat; `text` instead of the echo."""
    said = echo(request) if text is None else text
    part = (
        {"text": said}
        if "prompt" in request.body
        else {"message": {"role": "assistant", "content": said}}
    )
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choices = [{"index": 0, **part, "finish_reason": finish}]
    return _json({"id": f"cmpl-{request.number}", "choices": choices, "usage": usage})


def chunk(request: Received, text: str, finish: str | None = None) -> bytes:
    """One event of a streamed answer."""
    part = {"text": text} if "prompt" in request.body else {"delta": {"content": text}}
    return (
        b"data: "
        + _json({"choices": [{"index": 0, **part, "finish_reason": finish}], "usage": None})
        + b"\n\n"
    )


def whole_stream(request: Received) -> bytes:
    """All events of a sound answer."""
    return chunk(request, echo(request)) + chunk(request, "", "stop") + DONE


def chunked(data: bytes) -> bytes:
    """A piece of a body of unknown length."""
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ------------------------------------------------------------------------------------------------
# acts that answer


async def sound(turn: Turn) -> None:
    """The right answer, as JSON."""
    await turn.write(http(answer(turn.request)))


async def sound_stream(turn: Turn) -> None:
    """The right answer, as an event stream of one event per word."""
    words = echo(turn.request).split(" ")
    events = [chunk(turn.request, word if not i else f" {word}") for i, word in enumerate(words)]
    events += [chunk(turn.request, "", "stop"), DONE]
    await turn.write(STREAM_HEAD)
    for event in events:
        await turn.write(chunked(event))
    await turn.write(LAST_CHUNK)


def says(text: str | None, finish: str | None) -> Act:
    """An answer with this content, which may be null, and this finish_reason."""

    async def act(turn: Turn) -> None:
        body = json.loads(answer(turn.request, finish=finish))
        part = body["choices"][0]
        if "text" in part:
            part["text"] = text
        else:
            part["message"]["content"] = text
        await turn.write(http(_json(body)))

    return act


def replies(body: bytes, status: str = "200 OK", **headers: str) -> Act:
    """This body, whatever was asked. `content_type="text/plain"` is the header Content-Type."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}

    async def act(turn: Turn) -> None:
        await turn.write(http(body, status, named))

    return act


def sends(data: bytes) -> Act:
    """These bytes, which need be no HTTP, and then the end of the connection."""

    async def act(turn: Turn) -> None:
        await turn.write(data)
        await turn.finish()

    return act


def answers_as(content_type: str) -> Act:
    """The right answer, as JSON under another content type."""

    async def act(turn: Turn) -> None:
        await turn.write(http(answer(turn.request), headers={"Content-Type": content_type}))

    return act


def refuses(status: str, message: str, **headers: str) -> Act:
    """An error status with trtllm-serve's error object."""
    return replies(
        _json({"object": "error", "message": message, "code": int(status[:3])}), status, **headers
    )


def fails_then(faults: int, fault: Act, then: Act) -> Script:
    """A script: so many faults, and then another act for ever."""
    return [*[fault] * faults, then]


async def without_length(turn: Turn) -> None:
    """The right answer, whose end is the end of the connection, as HTTP/1.0 had it."""
    await turn.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer(turn.request)
    )
    await turn.finish()


async def informs_first(turn: Turn) -> None:
    """100 Continue and 103 Early Hints, and then the right answer."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
    await turn.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    await asyncio.sleep(0.005)
    await turn.write(hints)
    await asyncio.sleep(0.005)
    await turn.write(hints + http(answer(turn.request)))


def later(seconds: float, then: Act) -> Act:
    """Thinks for a while before another act."""

    async def act(turn: Turn) -> None:
        await asyncio.sleep(seconds)
        await then(turn)

    return act


def in_reverse(count: int) -> Act:
    """Holds requests back until `count` have come, and answers the last first."""
    waiting: list[asyncio.Event] = []

    async def act(turn: Turn) -> None:
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


async def many_events(turn: Turn) -> None:
    """100 000 events of one character each."""
    event = chunked(chunk(turn.request, "x"))
    await turn.write(STREAM_HEAD)
    for _ in range(1000):
        await turn.write(event * 100)
    await turn.write(chunked(chunk(turn.request, "", "stop")) + chunked(DONE) + LAST_CHUNK)


# ----------------------------------------------------------------------------------------- acts
# that answer too much


async def twice_at_once(turn: Turn) -> None:
    """The right answer two times, in one write."""
    await turn.write(http(answer(turn.request)) * 2)


def twice_after(delay_s: float) -> Act:
    """The right answer, and again when the connection lies idle."""

    async def act(turn: Turn) -> None:
        await turn.write(http(answer(turn.request)))
        await asyncio.sleep(delay_s)
        await turn.write(http(answer(turn.request)))

    return act


def then_the_beginning_of_another(delay_s: float) -> Act:
    """The right answer, and later the first bytes of something that nobody asked for."""

    async def act(turn: Turn) -> None:
        await turn.write(http(answer(turn.request)))
        await asyncio.sleep(delay_s)
        await turn.write(b"HTTP/1.1 200 OK\r\nContent-Ty")

    return act


async def then_408(turn: Turn) -> None:
    """The right answer, and a 408 for the request that does not come, as proxies send it before
    they hang up.
    """
    await turn.write(http(answer(turn.request)))
    await asyncio.sleep(0.02)
    await turn.write(http(b"too slow", "408 Request Time-out", {"Content-Type": "text/plain"}))


@dataclass(frozen=True, slots=True)
class Bomb:
    """Zeros, gzipped; what they become and what they are sent as."""

    unpacked: int
    packed: bytes

    async def __call__(self, turn: Turn) -> None:
        await turn.write(http(self.packed, headers={"Content-Encoding": "gzip"}))


def gzip_bomb(mebibytes: int = 64) -> Bomb:
    """Made piece by piece, so that the test does not hold what the client must not hold."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        for _ in range(mebibytes):
            file.write(bytes(2**20))
    return Bomb(mebibytes * 2**20, packed.getvalue())


async def gzipped(turn: Turn) -> None:
    """The right answer, gzipped although that was not asked for."""
    await turn.write(
        http(gzip.compress(answer(turn.request)), headers={"Content-Encoding": "gzip"})
    )


async def endless(turn: Turn) -> None:
    """A body that does not end."""
    await turn.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    while True:
        await turn.write(chunked(b" " * 65536))


async def endless_stream(turn: Turn) -> None:
    """An answer that is streamed and does not end."""
    await turn.write(STREAM_HEAD)
    events = chunked(chunk(turn.request, "x") * 500)
    while True:
        await turn.write(events)


def then_endless(events: Callable[[Received], bytes]) -> Act:
    """An event stream that goes on after its end, with these events over and over."""

    async def act(turn: Turn) -> None:
        await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request)))
        while True:
            await turn.write(chunked(events(turn.request) * 100))

    return act


# ---------------------------------------------------------------------------------------- acts that
# answer too little


async def hangs_up(turn: Turn) -> None:
    """Reads the request and closes the connection (FIN)."""
    await turn.finish()


async def resets(turn: Turn) -> None:
    """Reads the request and breaks the connection (RST)."""
    await turn.reset()


async def resets_before_the_body(turn: Turn) -> None:
    """The head of an answer, and RST."""
    await turn.write(http(b"", length=1000))
    await turn.reset()


async def resets_in_the_body(turn: Turn) -> None:
    """Half an answer, and RST."""
    whole = http(answer(turn.request))
    await turn.write(whole[:-40])
    await turn.reset()


async def closes_in_the_body(turn: Turn) -> None:
    """Half an answer, and FIN."""
    whole = http(answer(turn.request))
    await turn.write(whole[:-40])
    await turn.finish()


async def closes_in_the_stream(turn: Turn) -> None:
    """Some events, and FIN without the last chunk."""
    await turn.write(STREAM_HEAD + chunked(chunk(turn.request, "half an")))
    await turn.finish()


async def ends_the_stream_early(turn: Turn) -> None:
    """Some events and a proper end, but neither a finish_reason nor [DONE]."""
    await turn.write(STREAM_HEAD + chunked(chunk(turn.request, "half an")) + LAST_CHUNK)


async def resets_after_the_finish(turn: Turn) -> None:
    """Every event up to the finish_reason, and RST instead of [DONE]."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request).removesuffix(DONE)))
    await turn.reset()


async def silent_after_the_finish(turn: Turn) -> None:
    """A finish_reason, and silence instead of the usage, [DONE] and the end of the body."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request).removesuffix(DONE)))
    await asyncio.sleep(60)


async def silent_after_done(turn: Turn) -> None:
    """Every event, and silence instead of the end of the body."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request)))
    await asyncio.sleep(60)


async def pings_after_done(turn: Turn) -> None:
    """Every event, and a comment now and then instead of the end of the body."""
    await turn.write(STREAM_HEAD + chunked(whole_stream(turn.request)))
    while True:
        await asyncio.sleep(0.05)
        await turn.write(chunked(b": ping\n\n"))


async def loses_the_stream_and_stays(turn: Turn) -> None:
    """[DONE] alone where a stream was asked for, and no end of it."""
    if turn.request.body.get("stream"):
        await turn.write(STREAM_HEAD + chunked(DONE))
        await asyncio.sleep(60)
    else:
        await sound(turn)


async def loses_the_stream(turn: Turn) -> None:
    """[DONE] alone where a stream was asked for, as trtllm-serve's orchestrator does, and else the
    right answer.
    """
    if turn.request.body.get("stream"):
        await turn.write(STREAM_HEAD + chunked(DONE) + LAST_CHUNK)
    else:
        await sound(turn)


async def cut_json(turn: Turn) -> None:
    """Half the JSON, sent as if it were whole."""
    await turn.write(http(answer(turn.request)[:-40]))


async def silent(turn: Turn) -> None:
    """Not one byte."""
    await asyncio.sleep(60)


async def silent_after_the_head(turn: Turn) -> None:
    """The head of an answer, and silence."""
    await turn.write(http(b"", length=1000))
    await asyncio.sleep(60)


async def stalls(turn: Turn) -> None:
    """Some events, and silence."""
    await turn.write(
        STREAM_HEAD
        + chunked(chunk(turn.request, "half"))
        + chunked(chunk(turn.request, " an answer"))
    )
    await asyncio.sleep(60)


async def trickles(turn: Turn) -> None:
    """A body of one byte per 20 ms: never silent, never done."""
    await turn.write(http(b"", length=1_000_000))
    while True:
        await turn.write(b"x")
        await asyncio.sleep(0.02)


def keeps_open(*sent: bytes) -> Act:
    """What is sent in turn, the last of it every 20 ms: a connection that is never silent, and no
    data.
    """

    async def act(turn: Turn) -> None:
        for piece in sent:
            await turn.write(piece)
        while True:
            await asyncio.sleep(0.02)
            await turn.write(sent[-1])

    return act


# ------------------------------------------------------------------------------------------ acts
# that are not HTTP


async def two_lengths(turn: Turn) -> None:
    """The right answer under two Content-Lengths, of which the first is too short."""
    body = answer(turn.request)
    await turn.write(http(body, headers={"content-length": "10"}))


async def long_header(turn: Turn) -> None:
    """The right answer under a header of 100 KB."""
    await turn.write(http(answer(turn.request), headers={"X-Long": "x" * 100_000}))


async def switches_protocols(turn: Turn) -> None:
    """101, and the right answer in what would be another protocol."""
    await turn.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    )
    await turn.write(http(answer(turn.request)))
