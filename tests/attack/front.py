"""Serve answers as a proxy does that sometimes answers twice, and that ends before it is found out.

The command is `python -m tests.attack.front`. The cases and their answers are those of
`tests.attack.hostile`. A second answer comes when the next request has arrived, so that from then
on every answer on the connection belongs to the request before. A request for the models would
reveal it: on such a connection the proxy dies instead of answering that, or some answers earlier.
"""

import argparse
import asyncio
import json
import random
import re
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.attack.hostile import said

_CASE = re.compile(r"Case (\d+):")
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "test"}]}


@dataclass(slots=True)
class Counts:
    """Counts of the proxy: `asked` completions, `checks`, `copies` and `deaths`."""

    asked: int = 0
    checks: int = 0
    copies: int = 0
    deaths: int = 0


class Front:
    """A proxy with the behaviour that the command line describes."""

    def __init__(self, told):
        self._told, self._rng, self.counts = told, random.Random(told.seed), Counts()
        self._writers = set()
        self._tasks = set()
        self._server = None
        self.port = 0

    async def listen(self):
        """Listen, from the second time on at the same port."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, backlog=1024, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def die(self):
        """End every connection and stop listening for a while."""
        if self._server is None:
            return
        self.counts.deaths += 1
        self._server.close()
        self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._start(self._rise())

    async def _rise(self):
        await asyncio.sleep(self._told.down_s)
        await self.listen()

    def _start(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader, writer):
        self._start(self._serve(reader, writer))

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._answer_all(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer_all(self, reader, writer):
        """Answer the requests of a connection, one after another."""
        told, held, behind, served = self._told, b"", 0, 0
        most = self._rng.randint(4, 7) if told.closes else 10**9
        while served < most:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = json.loads(await reader.readexactly(int(length[1])) if length else b"{}")
            behind += bool(held or behind)
            found_out = head.startswith(b"GET") or behind > told.dies_after
            if behind and found_out and self.counts.deaths < told.deaths:
                self.die()
                return
            writer.write(held)
            held = b""
            if head.startswith(b"GET"):
                await self._list_models(writer)
                continue
            self.counts.asked += 1
            await asyncio.sleep(told.latency_s * self._rng.uniform(0.2, 1.8))
            served += 1
            answer = _answer(body)
            last = told.announces and served == most
            writer.write(
                answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) if last else answer
            )
            if self.counts.asked > told.from_request and self._rng.random() < told.doubles:
                self.counts.copies += 1
                held = answer
                most = min(most, served + self._rng.randint(1, 3)) if told.closes else most
            await writer.drain()

    async def _list_models(self, writer):
        """Answer a request for the models as the command line says."""
        self.counts.checks += 1
        if self._told.models == "list":
            writer.write(_http(json.dumps(MODELS).encode()))
        elif self._told.models == "missing":
            writer.write(_http(b'{"detail":"Not Found"}', status="404 Not Found"))
        else:
            await asyncio.sleep(3600)


def _answer(body):
    """Return the answer of a case, whole or as a stream, without an id."""
    prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
    case = _CASE.search(str(prompt))
    text = "2" if case is None else said(int(case[1]))
    most = min(8, body.get("max_tokens") or 8)
    usage = {"prompt_tokens": 5, "completion_tokens": most, "total_tokens": 5 + most}
    chat = "messages" in body

    def choice(piece, finish, part):
        told = {part: {"role": "assistant", "content": piece}} if chat else {"text": piece}
        return {"index": 0, "finish_reason": finish, **told}

    if not body.get("stream"):
        return _http(
            json.dumps({"choices": [choice(text, "stop", "message")], "usage": usage}).encode()
        )
    pieces = [choice(text, None, "delta"), choice("", "stop", "delta")]
    events = [json.dumps({"choices": [piece], "usage": usage}) for piece in pieces]
    stream = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
    return _http(stream, kind="text/event-stream")


def _http(body, *, status="200 OK", kind="application/json"):
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _run(told):
    ended, front = asyncio.Event(), Front(told)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await front.listen()
    Path(told.ready_file).write_text(f"http://127.0.0.1:{front.port}/v1")
    await ended.wait()
    Path(told.ready_file).with_name("counts.json").write_text(json.dumps(asdict(front.counts)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ready-file", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.05)
    parser.add_argument("--doubles", type=float, default=0.01, help="share of doubled answers")
    parser.add_argument("--from-request", type=int, default=0, help="the first that is doubled")
    parser.add_argument("--deaths", type=int, default=0, help="how often it dies at most")
    parser.add_argument("--dies-after", type=int, default=3, help="answers that are shifted")
    parser.add_argument("--down-s", type=float, default=0.5)
    parser.add_argument("--closes", action="store_true", help="after 4 to 7 answers, in silence")
    parser.add_argument("--announces", action="store_true", help="with --closes: not in silence")
    parser.add_argument("--models", choices=("list", "missing", "hangs"), default="list")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
