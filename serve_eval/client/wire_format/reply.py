"""Process the reply to one request as it arrives."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.client.wire_format.response_head import (
    CONTEXT_FIELD,
    FIELDS,
    GENERATION_FIELD,
    REMAINING,
    RETRY_AFTER,
    SERVER_FIELDS,
    STAMPS,
    TIMING,
    BehindDone,
    parse,
    read_pause,
    read_servers,
)
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.client.wire_format.wire import EVENT_STREAM
from serve_eval.schema import AnsweringServers, Route, ServerTiming

if TYPE_CHECKING:
    from serve_eval.client.wire_format.responses_stream import ResponsesStream

STATE_HEADER, STARTING = b"x-trtllm-server-state", "starting"
"""The header by which trtllm-serve reports, with a 503, that it is still loading its model."""
AFTER_DONE_S = 1.0
"""Seconds that a stream may take to end after [DONE] before its connection is given up."""
AFTER_FINISH_S = 5.0
"""Seconds to wait for the usage and [DONE] after a finish_reason has completed the answer."""
FRAMING, MIN_FRAMING = 2, 98304
"""A body of n bytes may take up FRAMING * n + MIN_FRAMING bytes of chunks."""


_REQUEST_ID, _TIMING, _STAMPS = b"x-request-id", TIMING.lower().encode(), STAMPS.lower().encode()
HEAD_FIELDS = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        RETRY_AFTER,
        _REQUEST_ID,
    }
    | {_TIMING, _STAMPS, STATE_HEADER}
    | FIELDS
    | SERVER_FIELDS
)
"""The header fields that a transport passes on, in lower case; of SERVER_FIELDS, a repeated one as
an empty one."""

_USUAL, _JSON = frozenset({b"content-type", b"content-length", _REQUEST_ID}), "application/json"
"""The fields of most heads, and the type of most bodies."""


class TooLarge(Exception):
    """The answer exceeds the size limit."""


class Reply:
    """A reply that a connection fills.

    `ended` is done when nothing more is expected. `error` then says why the reply is incomplete, or
    is None. `status` is 0 until the head has come. `content` holds the body. An event stream is fed
    to `stream` instead as it arrives, unless the reply is `raw`.

    `received` counts bytes with their framing, at most `most`; `idle` counts those since the last
    byte of the body. `read_at` is the time of the last byte, `heard_at` that of the last data
    (monotonic clock; infinity: none is expected). Data is the head, the chunks with a choice in an
    event stream, and in other bodies anything that is not blank. Comments, empty events and spaces
    only keep a connection open and do not count.

    `whole`: the message ended, so that its connection can be reused. `request_id` is the
    X-Request-ID that came back. `mask` removes secrets from `content`. `starting`: the server is
    still loading its model. `pause_s`: the seconds for which it wants no further request, because
    a quota is spent. `route` says how the body is read. `servers` are those that the head
    names. With `metrics`, `told` holds the header fields of `server_timing`, and its event is also
    searched for in streams.
    """

    __slots__ = (
        "_body",
        "_heard_at",
        "_limit",
        "_mask",
        "_masked",
        "_metrics",
        "_raw",
        "_size",
        "_timer",
        "_unpack",
        "content_type",
        "ended",
        "error",
        "idle",
        "most",
        "pause_s",
        "read_at",
        "received",
        "request_id",
        "retry_after",
        "route",
        "servers",
        "starting",
        "status",
        "stream",
        "told",
        "until_close",
        "whole",
    )

    def __init__(
        self,
        ended: asyncio.Future[None],
        *,
        limit: int,
        now: float,
        raw: bool = False,
        mask: Callable[[bytes], bytes] | None = None,
        metrics: bool = False,
        route: Route = Route.CHAT,
    ) -> None:
        self.route = route
        self.ended, self._limit, self._raw, self.read_at = ended, limit, raw, now
        self._mask, self._masked, self._metrics = mask, b"", metrics
        self.told: tuple[str | None, str | None] = None, None
        self._heard_at = now
        self.most = FRAMING * limit + MIN_FRAMING
        self.error: Exception | None = None
        self.status = self.received = self.idle = self._size = 0
        self.content_type = ""
        self.retry_after: str | None = None
        self.pause_s: float | None = None
        self.request_id: str | None = None
        self.servers: AnsweringServers | None = None
        self.until_close = self.whole = self.starting = False
        self.stream: StreamedAnswer | ResponsesStream | None = None
        self._body: bytes | bytearray = b""
        self._unpack: _Unpacked | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def content(self) -> bytes:
        if self._mask is None or not self._body:
            return bytes(self._body)
        if not self._masked or not self.ended.done():
            self._masked = self._mask(bytes(self._body))
        return self._masked

    @property
    def timing(self) -> ServerTiming | None:
        """The server's timing of the request, if it was requested."""
        if not self._metrics:
            return None
        behind = None if self.stream is None else self.stream.behind
        return parse(*self.told) if behind is None else behind.timing

    @property
    def heard_at(self) -> float:
        return self._heard_at if self.stream is None else max(self._heard_at, self.stream.heard_at)

    def expect(self, now: float) -> None:
        """Note that the request is sent now: waiting for a connection is not silence."""
        self.read_at = self._heard_at = now

    def begin(self, status: int, head: Mapping[bytes, str]) -> None:
        """Take the status and the HEAD_FIELDS of the head."""
        self.status, self._heard_at = status, self.read_at
        self.content_type = content_type = head.get(b"content-type", "")
        self.request_id = head.get(_REQUEST_ID)
        self.until_close = b"content-length" not in head
        if (status >= 300 or not _USUAL.issuperset(head)) and not self._take_rare(status, head):
            return
        if (
            content_type != _JSON
            and not self._raw
            and status < 300
            and content_type[: len(EVENT_STREAM)].lower() == EVENT_STREAM
        ):
            self.stream = self._open_stream(BehindDone() if self._metrics else None)

    def _open_stream(self, behind: BehindDone | None) -> StreamedAnswer | ResponsesStream:
        if self.route is not Route.RESPONSES:
            return StreamedAnswer(behind)
        from serve_eval.client.wire_format.responses_stream import ResponsesStream  # few need it

        return ResponsesStream(behind)

    def _take_rare(self, status: int, head: Mapping[bytes, str]) -> bool:
        """Take an error status, and fields that few heads have. Return False if the reply fails."""
        self.retry_after = head.get(RETRY_AFTER)
        if status == 429 or not REMAINING.isdisjoint(head):
            self.pause_s = read_pause(status, head)
            if status == 429 and self.pause_s is not None:
                self.retry_after = f"{self.pause_s:.3f}"
        if self._metrics:
            self.told = head.get(_TIMING), head.get(_STAMPS)
        if CONTEXT_FIELD in head or GENERATION_FIELD in head:
            self.servers = read_servers(head)
        self.starting = status == 503 and head.get(STATE_HEADER, "").strip().lower() == STARTING
        coding = head.get(b"transfer-encoding", "").strip().lower()
        if "chunked" in coding:
            self.until_close = False
        if coding not in ("", "identity", "chunked"):
            # The end of such a body is unknown: waiting for it would last until a time limit.
            self.fail(
                InvalidResponse(
                    f"a body in the transfer encoding {coding[:40]!r}, which was not requested"
                )
            )
            return False
        if b"content-encoding" in head:
            self._unpack_from(head[b"content-encoding"].strip().lower().removeprefix("identity"))
        return True

    def _unpack_from(self, encoding: str) -> None:
        try:
            self._unpack = _Unpacked(encoding) if encoding else None
        except ValueError:
            self.fail(
                InvalidResponse(f"a body in the encoding {encoding!r}, which was not requested")
            )

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.ended.done():
            return
        self.idle = 0
        try:
            if self._unpack is not None:
                piece = self._unpack.feed(piece, self._limit - self._size + 1)
            self._size += len(piece)
            if self._size > self._limit:
                self.too_large()
            elif self.stream is None:
                self._append(piece)
            elif self.stream.wanting:
                self.stream.feed(piece, self.read_at)
        except zlib.error as error:
            self.fail(InvalidResponse(f"the body cannot be decompressed: {error}"))
        except InvalidResponse as error:
            self.fail(error)

    def _append(self, piece: bytes) -> None:
        if not piece.isspace():
            self._heard_at = self.read_at
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def too_large(self) -> None:
        """Stop reading at the size limit.

        Extra bytes after a complete stream do not fail the answer.
        """
        if self.stream is not None and self.stream.complete:
            self.settle()
        else:
            self.fail(TooLarge(f"the answer is larger than {self._limit} bytes"))

    def hurry(self) -> None:
        """Limit the time in which an event stream with a complete answer may end."""
        stream = self.stream
        if stream is None or not (stream.complete or stream.done) or self.ended.done():
            return
        if stream.done and self._heard_at != math.inf:
            self._heard_at = math.inf
            self._settle_in(AFTER_DONE_S)
        elif self._timer is None:
            self._settle_in(AFTER_FINISH_S)

    def finish(self) -> None:
        """Note the end of the message."""
        self.whole = True
        complete = self.stream is not None and self.stream.complete
        if self._unpack is not None and not self._unpack.at_end and self._size and not complete:
            self.fail(InvalidResponse("the compressed body is incomplete"))
        else:
            self.settle()

    def discard(self, ended: asyncio.Future[None]) -> None:
        """Discard the rest of the reply; `ended` is done when it has come."""
        self.ended, self.stream, self._unpack, self._body = ended, None, None, b""
        if self.whole:
            self.settle()

    def settle(self) -> None:
        """Note that nothing more is expected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """Note that the reply stays incomplete."""
        if not self.ended.done():
            self.error = error
            self.settle()

    def _settle_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.ended.get_loop().call_later(seconds, self.settle)


class _Unpacked:
    """A body that was compressed although `Accept-Encoding: identity` was sent.

    Raises ValueError for an encoding other than gzip and deflate.
    """

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ValueError(encoding)
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS + 32)  # detects gzip or deflate
        self.at_end = False

    def feed(self, piece: bytes, at_most: int) -> bytes:
        """Return at most `at_most` bytes that a piece unpacks to.

        Raises zlib.error, also for bytes after the end.
        """
        if self.at_end:
            raise zlib.error("bytes after its end")
        unpacked = self._unpack.decompress(piece, at_most)
        self.at_end = self._unpack.eof
        if self._unpack.unused_data:
            raise zlib.error("bytes after its end")
        return unpacked
