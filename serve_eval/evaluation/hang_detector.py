"""Tell a slow endpoint from one with a server that hangs.

A loaded server queues without limit and does not hang.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError, ServerEndedError
from serve_eval.schema import Failure, FailureKind, Request

MAX_TICK_S = 1.0
TICKS = 50
"""Checks per time limit, which is thus accurate to 1/TICKS."""
HOLD = 0.5
"""Part of the limit after which silent attempts are no longer given up: all may wait for one
server."""
LOG_LINES = 10
"""Log lines quoted in the error."""
LOG_BYTES = 16384


class ProbedServer:
    """A server that may hang.

    `opened` returns a new client for it that makes one attempt; the client's time limits are the
    time that the server gets. `request` is the short request to send. `log` is the server's log, if
    known.
    """

    def __init__(
        self, name: str, opened: Callable[[], Client], request: Request, log: Path | None = None
    ) -> None:
        self.name, self.opened, self.request, self.log = name, opened, request, log

    async def answer(self) -> str | None:
        """Return a description of the reply, even a refusal, or None if there was none."""
        began = time.monotonic()
        async with self.opened() as client:
            result = await client.send(self.request)
        if isinstance(result, Failure):
            return (
                None if result.kind is FailureKind.TIMEOUT else f"does not hang: {result.message}"
            )
        return f"answered a short request after {time.monotonic() - began:.1f} s"

    def last_lines(self) -> Sequence[str]:
        """Return the last lines of its log; empty if there is no log."""
        try:
            assert self.log is not None
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
                return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        except (AssertionError, OSError):
            return ()


class HangDetector:
    """Watch the requests of `client`, which go to `front`; servers in `behind` work for it."""

    def __init__(
        self,
        client: Client,
        front: ProbedServer,
        behind: Sequence[ProbedServer] = (),
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._client, self._front, self._behind, self._told = client, front, behind, notify
        self._limit_s = client.limits.stall_timeout_s
        self._tick_s = min(MAX_TICK_S, self._limit_s / TICKS)

    async def watch(self) -> None:
        """Run until cancelled.

        Raises EndpointError if requests are in flight, nothing arrived for `stall_timeout_s`, and a
        server then left a short request unanswered for the same time.
        """
        patience = self._client.patience
        try:
            while True:
                await asyncio.sleep(self._tick_s)
                silent_s = patience.silent_s()
                patience.held = silent_s >= HOLD * self._limit_s
                if silent_s >= self._limit_s:
                    await self._find_out()
                    patience.heard()
        finally:
            patience.held = False

    async def _find_out(self) -> None:
        """Send short requests. Return once something else arrives or all are answered."""
        everyone, patience = [self._front, *self._behind], self._client.patience
        names = ", ".join(one.name for one in everyone)
        self._told(f"no data for {self._limit_s:g} s: sending a short request to {names}")
        last, silent_s = patience.heard_at(), patience.silent_s()
        asked = {one: asyncio.create_task(one.answer()) for one in everyone}
        waiting: set[asyncio.Task[str | None]] = set(asked.values())
        began = time.monotonic()
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, timeout=self._tick_s)
                if patience.heard_at() > last:
                    return
        finally:
            for task in asked.values():
                task.cancel()
            await asyncio.gather(*asked.values(), return_exceptions=True)
        answers = {one: task.result() for one, task in asked.items()}
        if None in answers.values():
            raise self._error(answers, silent_s + time.monotonic() - began)
        self._told("all answered: the endpoint is slow but does not hang")

    def _error(self, answers: Mapping[ProbedServer, str | None], silent_s: float) -> EndpointError:
        hung = [one for one in self._behind if answers[one] is None] or [self._front]
        names = ", ".join(one.name for one in hung)
        message = [
            f"{names} {'hangs' if len(hung) == 1 else 'hang'}: no data for {silent_s:.0f} s,"
            f" and no answer to a short request for {self._limit_s:g} s"
        ]
        message += [
            f"  {one.name} {told or 'does not answer either'}"
            for one, told in answers.items()
            if one not in hung
        ]
        if self._behind and hung == [self._front]:
            message.append("  so it hangs itself, or the servers behind it cannot reach each other")
        for one in hung:
            if lines := one.last_lines():
                message += [
                    f"  the log of {one.name} ends with:",
                    *(f"    {line}" for line in lines),
                ]
        logs = "".join(
            f" The log of {one.name} is {one.log}." for one in hung if one.log is not None
        )
        return ServerEndedError(
            "\n".join(message),
            hint="Resume once it responds again. limits.stall_timeout_s sets this time"
            f" limit.{logs}",
        )
