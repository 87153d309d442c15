"""Serve one request at a time on an HTTP/1.1 connection, and process replies as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from serve_eval.client.tls import refusal
from serve_eval.client.transport import BadHttp, CertificateRefused, Disconnected
from serve_eval.client.wire_format.reply import HEAD_FIELDS, Reply
from serve_eval.client.wire_format.response_head import SERVER_FIELDS

FIRST_CHECK, CHECK_EVERY = 8, 512
"""Answers on a connection before its first check, and before each further one. A check costs as
much as four requests."""
MAX_HEAD = 98304
"""Maximum size of a response head in bytes. The metrics of main need up to 80 KiB."""

_GOODBYE = b"HTTP/1.1 408", b"HTTP/1.0 408"
"""Some proxies send this unrequested before they close an idle connection. It answers nothing."""


class Http1Connection(asyncio.Protocol):
    """One HTTP/1.1 connection.

    A connection on which unrequested data came is closed, because it may be one answer behind. An
    open connection is in `everyone`; a lost one is removed from `idle`.

    `usable`: another request may be sent. `last_id` and `last_text` describe its last answer (see
    `Echoes`). It delivered `turns` answers, of which the first `proven` certainly belong to their
    requests, since `proven_at`. `sent` counts the requests sent. `out`: it is out of step, which
    was reported to `stray`. `closing`: the server announced its end. `cut`: the server ended it. If
    it ends while idle, `ended` receives it. `number` identifies it. `round_trip_s` is the time that
    opening it took.
    """

    __slots__ = (
        "_all",
        "_ended",
        "_head",
        "_head_size",
        "_idle",
        "_informational",
        "_parser",
        "_reply",
        "_stray",
        "_transport",
        "closing",
        "cut",
        "ends_unproven",
        "last_id",
        "last_text",
        "number",
        "out",
        "proven",
        "proven_at",
        "round_trip_s",
        "sent",
        "turns",
        "usable",
        "used_at",
    )

    def __init__(
        self,
        everyone: set[Http1Connection],
        idle: dict[Http1Connection, None],
        number: int = 0,
        stray: Callable[[Http1Connection, str], None] = lambda connection, why: None,
        ended: Callable[[Http1Connection], None] = lambda connection: None,
    ) -> None:
        self._all, self._idle, self.number, self._stray = everyone, idle, number, stray
        self._ended = ended
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._head: dict[bytes, str] = {}
        self._head_size = 0
        self._informational = False
        self.usable, self.used_at, self.round_trip_s = True, 0.0, 0.0
        self.last_id: str | None = None
        self.last_text = self.turns = self.proven = self.sent = 0
        self.out = self.closing = self.cut = self.ends_unproven = False
        self.proven_at = time.monotonic()

    @property
    def unproven(self) -> bool:
        """True if it gave answers that may belong to other requests; its first one cannot."""
        return self.turns > 1 and self.turns > self.proven

    @property
    def due(self) -> bool:
        """True if it gave enough answers to be checked."""
        return self.turns - self.proven >= (CHECK_EVERY if self.proven else FIRST_CHECK)

    def send(self, request: bytes, reply: Reply) -> None:
        """Write a whole request; what comes back goes to `reply`."""
        self._reply = reply
        self.sent += 1
        if self._transport is None or not self.usable:
            reply.fail(Disconnected("the connection was closed before the request was sent"))
        else:
            self._transport.write(request)

    def rest(self, now: float) -> None:
        """Mark the connection as idle: the reply is complete, and nothing is expected."""
        self._reply, self.used_at = None, now

    def abort(self) -> None:
        """End the connection immediately."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._all.add(self)
        if not self.usable:  # data came before any request
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            if self.sent and self.usable and not data.startswith(_GOODBYE):
                self._stray(self, "unrequested bytes came")
            self.abort()
            return
        reply.read_at = time.monotonic()
        reply.received += len(data)
        reply.idle += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._refuse(reply, "the server switches to another protocol")
        except HttpParserError as error:
            self._refuse(reply, str(error))
        if not reply.whole:
            if not reply.status and reply.received > MAX_HEAD:
                self._refuse(reply, f"a head of more than {MAX_HEAD} bytes")
            elif reply.status and reply.idle > MAX_HEAD + len(data):
                self._refuse(reply, f"more than {MAX_HEAD} bytes outside any body")
            elif reply.received > reply.most:
                reply.too_large()
            elif reply.stream is not None:
                reply.hurry()

    def eof_received(self) -> None:
        """Abort the connection: the server sends nothing more."""
        self.cut = self.usable
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.cut = self.cut or self.usable
        self.usable, self._transport = False, None
        self._all.discard(self)
        self._idle.pop(self, None)
        reply, self._reply = self._reply, None
        if reply is None:
            self._ended(self)
        if reply is None or reply.ended.done():
            return
        if error is None and reply.until_close:
            reply.finish()
        elif reply.stream is not None and reply.stream.complete:
            reply.settle()
        else:
            when = "within the answer" if reply.status else "before an answer came"
            why = f" ({type(error).__name__}: {error})" if error is not None else ""
            if told := refusal(error):
                reply.fail(CertificateRefused(told))
            else:
                reply.fail(Disconnected(f"the connection ended {when}{why}"))

    # Called by the parser

    def on_message_begin(self) -> None:
        self._head, self._head_size, self._informational = {}, 0, False
        if self._reply is None or self._reply.whole:
            self._stray(self, "a second message came after a complete answer")
            self.usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        name = name.lower()
        if name in HEAD_FIELDS:
            repeated = name in self._head and name in SERVER_FIELDS
            self._head[name] = "" if repeated else value.decode("latin-1")

    def on_headers_complete(self) -> None:
        reply, head, status = self._reply, self._head, self._parser.get_status_code()
        if reply is None or reply.whole:
            return
        self._informational = 100 <= status < 200
        if status < 100:
            self._refuse(reply, f"the status {status}")
        elif self._head_size > MAX_HEAD:
            self._refuse(reply, f"a head of more than {MAX_HEAD} bytes")
        elif not self._informational:
            reply.begin(status, head)

    def on_body(self, piece: bytes) -> None:
        reply = self._reply
        if reply is not None and not reply.whole and not self._informational:
            reply.take(piece)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None or reply.whole or self._informational:
            return
        if not self._parser.should_keep_alive():
            self.usable, self.closing = False, True
        reply.finish()

    def _refuse(self, reply: Reply, why: str) -> None:
        if reply.whole:
            self._stray(self, "bytes came after a complete answer")
        self.usable = False
        reply.fail(BadHttp(f"no HTTP answer: {why}"))
