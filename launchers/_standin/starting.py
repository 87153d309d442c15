"""A server of main that loads its model while it listens; every route is a 503 that says so.

An open change does this (PR 17787); the merged versions refuse connections until they have loaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from aiohttp import web

from serve_eval.launchers._http.errors import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.options import Flavour

HEADERS = {"x-trtllm-server-state": "starting", "Retry-After": "1"}
ERROR = {
    "message": "The engine is not initialized yet; /health answers 200 once it is.",
    "type": "ServiceUnavailableError",
    "code": "starting",
}


def answers_while_loading(flavour: Flavour) -> bool:
    """Return True for a version of main with the open change, which a variable asks for."""
    return flavour == "main" and os.environ.get("STANDIN_STARTING") == "1"


class Ended(Exception):
    """Ends the process with this exit code after a failed start."""

    def __init__(self, code: int) -> None:
        self.code = code


class Loading:
    """Answers instead of an application until `load`, which blocks, has ended in a thread."""

    def __init__(self, load: Callable[[], None]) -> None:
        self._load, self.done = load, False

    async def run(self) -> None:
        """Run `load`. Raise its errors, and Ended if it exits."""
        try:
            await asyncio.to_thread(self._load)
        except SystemExit as end:
            raise Ended(int(end.code or 0)) from None
        self.done = True

    def before(self, app: web.Application) -> None:
        """Put the middleware before every route of an application, including missing ones."""
        app.middlewares.insert(0, self._middleware)

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.done:
            return await handler(request)
        return json_response(503, encode({"error": ERROR}), HEADERS)
