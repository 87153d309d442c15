"""aiohttp's connector with two more questions: did anything arrive that nobody asked for, and is an answer a
repetition?

A proxy that answers twice puts the second answer before the one to the next request on that connection, and from then
on every sample would be scored with the answer of another. HTTP/1.1 cannot tell; the ids of the answers can.
"""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from serve_eval.client.patience import Wait
from serve_eval.client.wire import Said

REQUEST_ID = "X-Request-ID"


class Line:
    """The last answer that a connection gave: its id and a hash of its text."""

    __slots__ = ("last_id", "last_text")

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.last_text = 0


class Connector(aiohttp.TCPConnector):
    """Keeps connections alive, but none that may be one answer behind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._waits: dict[str, Wait] = {}
        self._lines: WeakKeyDictionary[ResponseHandler, Line] = WeakKeyDictionary()
        self._newest: tuple[str, Line] | None = None
        self._ids_tell = True

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        """A connection on which nothing arrived while it was idle; aiohttp 3.14 asks that only when one comes back."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            wait = self._waits.get(req.headers.get(REQUEST_ID, ""))
            if protocol is None or wait is None:
                return connection
            line = self._lines.get(protocol)
            if line is None:
                line = self._lines[protocol] = Line()
            elif protocol.should_close:
                connection.close()
                continue
            wait.protocol, wait.line, wait.heard_at = protocol, line, time.monotonic()
            return connection

    def expect(self, request_id: str, wait: Wait) -> None:
        """Announces a request. From the moment when it has a connection on, its endpoint is expected to be heard."""
        self._waits[request_id] = wait

    def done(self, request_id: str, wait: Wait, *, trusted: bool) -> None:
        """Forgets a request. Its connection is not used again unless it is `trusted`: after an error it may still get
        the answer that the error came before."""
        del self._waits[request_id]
        if wait.protocol is not None and not trusted:
            wait.protocol.force_close()
        wait.protocol = wait.line = None

    def repeats(self, wait: Wait, said: Said) -> bool:
        """Whether an answer is the last one of its connection once more, by its id and its text.

        Servers that give every answer the same id are noticed by it, and no longer asked.
        """
        line = wait.line
        if line is None or said.id is None or not self._ids_tell:
            return False
        text = hash(said.text)
        if said.id == line.last_id and text == line.last_text:
            self._newest = said.id, line
            return True
        elsewhere = self._newest is not None and self._newest[0] == said.id and self._newest[1] is not line
        if elsewhere or said.id == line.last_id:
            self._ids_tell = False
        self._newest, line.last_id, line.last_text = (said.id, line), said.id, text
        return False
