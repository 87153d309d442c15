"""aiohttp's connector with two more questions: did anything arrive that nobody asked for, and is an answer a
repetition?

A proxy that answers twice puts the second answer before the one to the next request on that connection, and from then
on every sample would be scored with the answer of another. HTTP/1.1 cannot tell; the ids of the answers can.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from serve_eval.client.wire import Said

REQUEST_ID = "X-Request-ID"


class Connector(aiohttp.TCPConnector):
    """Keeps connections alive, but none that may be one answer behind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._carries: dict[str, ResponseHandler] = {}
        self._last: WeakKeyDictionary[ResponseHandler, tuple[str | None, int]] = WeakKeyDictionary()
        self._newest: tuple[str, ResponseHandler] | None = None
        self._ids_tell = True

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        """A connection on which nothing arrived while it was idle; aiohttp 3.14 asks that only when one comes back."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None:
                return connection
            if protocol not in self._last or not protocol.should_close:
                request_id = req.headers.get(REQUEST_ID)
                if request_id is not None:
                    self._carries[request_id] = protocol
                    self._last.setdefault(protocol, (None, 0))
                return connection
            connection.close()

    def repeats(self, request_id: str, said: Said) -> bool:
        """Whether an answer is the connection's last one once more, by its id and its text.

        Servers that give every answer the same id are noticed by it, and no longer asked.
        """
        protocol = self._carries.get(request_id)
        if protocol is None or said.id is None or not self._ids_tell:
            return False
        last_id, last_text = self._last[protocol]
        text = hash((said.text, said.reasoning))
        if said.id == last_id and text == last_text:
            self._newest = said.id, protocol
            return True
        elsewhere = self._newest is not None and self._newest[0] == said.id and self._newest[1] is not protocol
        if elsewhere or said.id == last_id:
            self._ids_tell = False
        self._newest, self._last[protocol] = (said.id, protocol), (said.id, text)
        return False

    def done(self, request_id: str, *, trusted: bool) -> None:
        """Forgets a request. Its connection is not used again unless it is `trusted`: after an error it may still get
        the answer that the error came before."""
        protocol = self._carries.pop(request_id, None)
        if protocol is not None and not trusted:
            protocol.force_close()
