"""Is each reply on a kept connection the one to the request before it?

A proxy that answers twice, or speaks unasked, puts an answer that nobody asked for before the next one, and HTTP/1.1
has no number that would tell. Such a connection stays behind for all its life. So one request whose reply cannot be an
answer (GET /models) proves at any time that all replies before it were in step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from serve_eval.client.http1.connection import Line
from serve_eval.client.reply import BadHttp, Reply
from serve_eval.client.wire import EVENT_STREAM, UNREADABLE

CHECK_EVERY = 512
"""A connection is checked again after so many answers: a check costs about as much as four requests."""
CHECK_S = 5.0
"""Seconds that a check may take; a connection that is silent for longer proves nothing."""
PARK_S = 2.0
"""Seconds to wait for the answer to a cancelled request, so that its connection can still be checked."""
LISTEN_S = 0.5
"""Seconds to listen for an unasked answer behind errors that may answer earlier requests."""
NO_ROUTE = (401, 403, 404, 405)
"""Errors of a path, which no completion gets where others get answers."""
IDLE_S = 1.0
"""A connection that is idle for so long is checked before its server closes it."""
TRIES = 3
"""So many error statuses in a row count as in step: some servers have no such route, and no answers but errors."""
ID_CHARACTERS = 36
"""Of the id of a request, a UUID; servers that shorten it name no request."""
MOST_OUT = 2
"""From so many connections out of step on, each request has a connection of its own."""


class Listener(Protocol):
    """Who can take answers back. Told how many turns of a connection were proven in step, and that one is out of step:
    all its answers behind the proven ones, but for the first, may be those to other requests."""

    def proven(self, connection: int, turns: int) -> None: ...

    def out_of_step(self, connection: int, why: str) -> None: ...


class Steps:
    """Checks connections. Without a `listener` nobody could take answers back, and each request has a connection of its
    own, whose first reply cannot be another's: `keeps` is false then, and when they go `alone`.

    `head` is the beginning of a request for the models up to the value of X-Request-ID, which `new_id` makes; all of
    them begin with `own`. `out` counts the connections that were out of step. `most` is the number of requests after
    which the server closes a connection (0: not known).
    """

    def __init__(self, head: bytes, new_id: Callable[[], str], own: str, limit: int) -> None:
        self._head, self._new_id, self._own, self._limit = head, new_id, own, limit
        self.listener: Listener | None = None
        self.alone = self.keeps = False
        self.out = self.most = self._closed_at = 0
        self._checks: set[asyncio.Task[None]] = set()

    def listen(self, listener: Listener | None) -> None:
        """Set the listener that takes answers back from now on."""
        self.listener = listener
        self.keeps = listener is not None and not self.alone

    def go_alone(self) -> None:
        """From now on each request has a connection of its own."""
        self.alone, self.keeps = True, False

    def closed(self, line: Line) -> None:
        """Notes that the server announced the end of a connection: two after as many requests show its limit."""
        if line.sent > 1:
            if line.sent == self._closed_at:
                self.most = line.sent
            self._closed_at = line.sent

    def due(self, line: Line) -> bool:
        """Return whether to give a connection up after a check, since the server is about to close it."""
        return line.sent >= self.most - TRIES

    def named(self, told: str) -> str | None:
        """The id of a request of ours in what a reply told; None where it names none."""
        at = told.find(self._own)
        return None if at < 0 or len(told) < at + ID_CHARACTERS else told[at : at + ID_CHARACTERS]

    def prove(self, line: Line, turns: int) -> None:
        """Notes that the first `turns` replies of a connection were in step."""
        line.proven, line.due_at = turns, turns + CHECK_EVERY
        if turns > 1 and self.listener is not None:
            self.listener.proven(line.number, turns)

    def prove_next(self, line: Line) -> None:
        """Notes that the reply to the request under way named it."""
        if line.unproven:
            self.prove(line, line.turns)
        line.proven = line.turns + 1
        line.due_at = line.proven + CHECK_EVERY

    def stray(self, line: Line, why: str) -> None:
        """Notes that a connection is out of step."""
        if line.out:
            return
        line.out, line.usable = True, False
        if self.listener is None or (self.alone and line.sent == 1):
            return  # there is no second answer on it, and it is found again, or known, where there may be
        self.out += 1
        if self.out >= MOST_OUT:
            self.go_alone()
        if self.listener is not None:
            self.listener.out_of_step(line.number, why)

    def check(self, line: Line, then: Callable[[Line], None], unwanted: Reply | None = None) -> None:
        """Checks a connection on which nothing is expected, or only the `unwanted` end of a reply; `then` gets it when
        it is still good."""
        task = asyncio.create_task(self._check(line, then, unwanted))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def settle(self) -> None:
        """Returns when no check is under way; that takes PARK_S and CHECK_S at most."""
        while self._checks:
            await asyncio.wait(self._checks)

    def close(self) -> None:
        """Gives all checks up."""
        for task in self._checks:
            task.cancel()

    async def _check(self, line: Line, then: Callable[[Line], None], unwanted: Reply | None) -> None:
        in_step = False
        try:
            if unwanted is not None:
                async with asyncio.timeout(PARK_S):
                    await unwanted.ended
            if unwanted is None or unwanted.whole:
                async with asyncio.timeout(CHECK_S):
                    in_step = await self._in_step(line)
        except TimeoutError:
            pass
        finally:
            if in_step:
                self.prove(line, line.turns)
            if in_step and line.usable:
                then(line)
            else:
                line.abort()

    async def _in_step(self, line: Line) -> bool:
        """Return whether a connection was proven in step; one that proves nothing is not.

        A list behind errors proves nothing: it may be that which the request before the last one asked for. Then one
        answer more comes, as it does behind nothing but errors of a connection out of step.
        """
        told, errors, clear = None, 0, True
        while told is None and errors < TRIES:
            request_id = self._new_id()
            reply = Reply(asyncio.get_running_loop().create_future(), limit=self._limit, now=time.monotonic(), raw=True)
            line.send(b"%b%b\r\n\r\n" % (self._head, request_id.encode()), reply)
            await reply.ended
            if line.out:
                return False
            told = self._told(reply, request_id)
            if told is False:
                self.stray(line, "a request for the models got another answer")
            if reply.whole:
                line.rest(time.monotonic())
            if told is False or not line.usable or not reply.whole:
                return bool(told) and not errors
            errors += told is None
            clear = clear and (told is not None or reply.status in NO_ROUTE)
        if not clear:
            await asyncio.sleep(LISTEN_S)
        return not line.out and (told is None or not errors)

    def _told(self, reply: Reply, request_id: str) -> bool | None:
        """Return whether a reply answers a request for the models; None where that cannot be told."""
        if reply.error is not None:
            return False if isinstance(reply.error, BadHttp) and not reply.status else None
        if reply.request_id is not None and (named := self.named(reply.request_id)) is not None:
            return named == request_id
        if reply.status >= 300:
            return None
        if reply.content_type[: len(EVENT_STREAM)].lower() == EVENT_STREAM:
            return False
        try:
            told = msgspec.json.decode(reply.content)
        except UNREADABLE:
            return None
        if not isinstance(told, dict):
            return None
        if told.get("choices"):
            return False
        return True if isinstance(told.get("data", told.get("models")), list) else None
