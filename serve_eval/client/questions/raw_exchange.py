"""Send a request as is, once, on a connection of its own, and return the raw reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from serve_eval.client.attempts.attempt import NOT_SENT
from serve_eval.client.attempts.outcome import Missed, OutcomeReader
from serve_eval.client.transport import RequestHead, Transport
from serve_eval.client.wire_format.reply import Reply
from serve_eval.schema import FailureKind

GET_S = 30.0
"""Time limit of a request, in seconds, unless the caller sets one."""


class RawExchange:
    """Sends requests with the session's headers, without retries or records.

    `posted` counts the POSTs, which may have been answered by generation.
    """

    def __init__(
        self,
        transport: Transport,
        headers: Mapping[str, str],
        reader: OutcomeReader,
        *,
        mask: Callable[[bytes], bytes] | None,
        max_bytes: int,
    ) -> None:
        self._transport, self._headers, self._reader = transport, headers, reader
        self._mask, self._max_bytes = mask, max_bytes
        self.posted = 0

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = GET_S,
        most_bytes: int | None = None,
    ) -> Reply:
        """Return the reply, which may have an `error`. Raises Missed if no answer began."""
        self.posted += method == "POST"
        limit = self._max_bytes if most_bytes is None else most_bytes
        future = asyncio.get_running_loop().create_future()
        reply = Reply(future, limit=limit, now=time.monotonic(), raw=True, mask=self._mask)
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange(RequestHead(method, path, self._headers), body, reply)
        except TimeoutError as error:
            if not reply.status:
                raise Missed(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s") from error
            reply.error = TimeoutError(f"no complete answer within {timeout_s:g} s")
        if reply.error is not None and not reply.status:
            raise self._reader.of_error(reply.error)
        return reply

    async def _exchange(self, head: RequestHead, body: bytes | None, reply: Reply) -> None:
        try:
            channel = await self._transport.send(head, body, reply, fresh=True)
        except TimeoutError as error:
            raise self._reader.not_connected() from error
        except NOT_SENT as error:
            raise self._reader.of_error(error) from error
        try:
            await reply.ended
        finally:
            self._transport.abort(channel)

    async def get(self, path: str) -> bytes:
        """Return the body of a GET; empty unless the status is 200. Raises Missed."""
        reply = await self.send("GET", path)
        if reply.error is not None:
            raise self._reader.of_error(reply.error)
        return reply.content if reply.status == 200 else b""
