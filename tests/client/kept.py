"""Keep connections as a run does, and repeat answers on them as a bad server does."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass

from serve_eval.client.client import Client
from serve_eval.schema import Endpoint, Limits


class Heard:
    """Listener for the reports of a client about its connections."""

    def __init__(self):
        self.in_step = {}
        self.out = {}
        self.ended = {}
        self.stand = {}

    def proven(self, connection, turns):
        self.in_step[connection] = turns

    def out_of_step(self, connection, why):
        self.out[connection] = why

    def lose_answers(self, connection, why, *, silent):
        self.ended[connection] = silent

    def trust_answers(self, connection, turns):
        self.stand[connection] = turns


def client_of(server, limits=None):
    """Return a client of a server."""
    return Client(Endpoint(base_url=server.base_url), limits or Limits())


@asynccontextmanager
async def kept(client, heard=None):
    """Open a client that reuses its connections."""
    async with client, client.keep_connections(heard or Heard()):
        yield client


MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}
FOREIGN = "nobody's question"
GOODBYE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Settings of a misbehaving server.

    A copy follows every `every`-th answer, `most_copies` in total, after `delay_s` (seconds, from
    and to). With `behind_next` it comes before the answer to the next request. `unasked` is sent
    instead of the copy. `ids`: fresh, constant, none, or request (an echo of ours). A connection
    ends after `most` requests, `announced` or not; an answer takes `slow_s`. Without `models` that
    route is missing, and the first `without` requests for it get a 404. Prompts in `refused` first
    get a 429. A connection that is idle for `goodbye_s` gets a 408.
    """

    every: int = 1
    most_copies: int = 10**9
    delay_s: tuple[float, float] = (0.0, 0.0)
    behind_next: bool = False
    unasked: bytes | None = None
    ids: str = "none"
    most: int = 10**9
    announced: bool = True
    slow_s: float = 0.0
    models: bool = True
    without: int = 0
    refused: tuple[str, ...] = ()
    goodbye_s: float = 0.0


class DoublingServer:
    """A server that listens as an async context manager.

    `asked` counts the requests by prompt. `texts` maps prompts to answers; other answers name their
    prompt.
    """

    def __init__(self, how, texts=None):
        self._how, self._rng, self._texts = how, random.Random(0), texts or {}
        self.asked = Counter()
        self.connections = self.copies = self.checks = 0
        self._answers = 0
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *error):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # connections close in the next turns of the loop

    def _accept(self, reader, writer):
        self._start(self._serve(reader, writer))

    def _start(self, work):
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader, writer):
        self.connections += 1
        how, served, held = self._how, 0, b""
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            while served < how.most:
                if how.goodbye_s and served:
                    try:
                        async with asyncio.timeout(how.goodbye_s):
                            head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    except TimeoutError:
                        writer.write(GOODBYE)
                        return
                else:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = {
                    n.lower(): v
                    for n, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                served += 1
                if how.slow_s:
                    await asyncio.sleep(how.slow_s)
                last = how.announced and served == how.most
                answer = self._answer(
                    head, json.loads(body or b"{}"), headers.get("x-request-id", ""), last
                )
                if held:
                    writer.write(held)
                    # The client takes it for the answer and sends its next request.
                    await asyncio.sleep(0.003)
                    held = b""
                writer.write(answer)
                self._answers += 1
                if self._answers % how.every == 0 and self.copies < how.most_copies:
                    self.copies += 1
                    copy = answer if how.unasked is None else how.unasked
                    if how.behind_next:
                        held = copy
                    elif how.delay_s[1]:
                        self._start(self._later(writer, copy, self._rng.uniform(*how.delay_s)))
                    else:
                        writer.write(copy)
                await writer.drain()

    async def _later(self, writer, copy, delay_s):
        await asyncio.sleep(delay_s)
        if not writer.is_closing():
            writer.write(copy)

    def _answer(self, head, asked, request_id, last):
        if head.startswith("GET"):
            self.checks += 1
            return (
                _http(json.dumps(MODELS).encode(), last)
                if self._how.models and self.checks > self._how.without
                else _http(b"{}", last, "404 Not Found")
            )
        prompt = asked["prompt"]
        self.asked[prompt] += 1
        if prompt in self._how.refused and self.asked[prompt] == 1:
            return _http(b"{}", last, "429 Too Many Requests")
        text = self._texts.get(prompt, f"to {prompt}")
        return whole(text, self._id(request_id), last, stream=asked.get("stream", False))

    def _id(self, request_id):
        match self._how.ids:
            case "constant":
                return {"id": "x"}
            case "fresh":
                return {"id": f"cmpl-{self._rng.getrandbits(64):x}"}
            case "request":
                return {"id": f"cmpl-{request_id}"}
        return {}


def whole(text, told, last=False, *, stream=False):
    """Return an answer, head and body."""
    usage = {"prompt_tokens": 5, "completion_tokens": 4}
    if not stream:
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return _http(json.dumps({**told, "choices": [choice], "usage": usage}).encode(), last)
    pieces = [{"text": text[:2]}, {"text": text[2:]}, {"text": "", "finish_reason": "stop"}]
    events = [
        json.dumps({**told, "choices": [{"index": 0, **piece}], "usage": usage}) for piece in pieces
    ]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
    return _http(body, last, kind="text/event-stream")


@contextmanager
def doubling(how, texts=None):
    """Run a server in its own thread for the length of a block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    server = DoublingServer(how, texts)
    run(server.__aenter__())
    try:
        yield server
    finally:
        run(server.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _http(body, last, status="200 OK", kind="application/json"):
    end = "Connection: close\r\n" if last else ""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{end}\r\n"
    return head.encode() + body
