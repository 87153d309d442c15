"""Thoughts that the answers of an endpoint have shown, by kind of request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from serve_eval.schema import Request, ThoughtsSeen

_SWITCHES = ("chat_template_kwargs", "reasoning_effort", "thinking", "thinking_token_budget")
"""Fields that decide whether a model thinks."""


class KnownThoughts:
    """Remembers which kinds of requests have thoughts that stop strings end, or templates open.

    A kind is the route with the fields that decide whether a model thinks.
    """

    def __init__(self) -> None:
        self.seen = ThoughtsSeen()
        self._stopped: set[str] = set()
        self._opened: dict[str, asyncio.Future[bool]] = {}

    def ends_at_stops(self, request: Request) -> bool:
        """Return True if a stop string has ended thoughts of this kind of request."""
        return bool(self._stopped) and _kind(request) in self._stopped

    def note_stopped(self, request: Request) -> None:
        """Remember that a stop string ended thoughts of this kind of request."""
        self._stopped.add(_kind(request))
        self.seen.stopped += 1

    async def are_opened(self, request: Request, ask: Callable[[], Awaitable[bool]]) -> bool:
        """Return True if the chat template opens thoughts; calls `ask` once for each kind."""
        kind = _kind(request)
        if kind not in self._opened:
            self._opened[kind] = asyncio.ensure_future(ask())
        return await asyncio.shield(self._opened[kind])


def _kind(request: Request) -> str:
    switches = {name: request.extra[name] for name in _SWITCHES if name in request.extra}
    return msgspec.json.encode((isinstance(request.prompt, str), switches), order="sorted").decode()
