"""The test server: a real socket on loopback, and a script that answers each request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from aiohttp import web

from serve_eval.evaluation.capabilities.sampling.reading import PROMPT
from serve_eval.launchers._http.server import serve_app
from tests.scripted_server.replies import HttpRequest, Reply, answer

Responder = Callable[[HttpRequest], Reply | Awaitable[Reply | web.StreamResponse]]
"""A reply, or a function that picks the reply to a request; an async one may return a response."""
Script = Sequence[Reply] | Responder
"""Replies in the order of requests, the last one repeating, or one responder for all."""
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
EVERY_PATH = ("/{path:.*}",)
IGNORES = "The cat sleeps."
"""Answer to each question of the probe for sampling defaults, so that no field is heeded."""
MAX_BODY_BYTES = 64 * 1024 * 1024


class ScriptedServer:
    """An OpenAI-compatible server whose answers a test writes.

    The script answers `paths`: POST requests for completions, or with `EVERY_PATH` any request.
    `routes` are the replies of other paths, such as {"/v1/models": models("m")}; all other paths
    are 404. The server keeps what it received: `requests` are all requests, `asked` those that the
    script answered. `max_in_flight` is the largest number of requests that the script answered at
    the same time.

    Questions of the probe for sampling defaults get one text, whatever they send, and are among
    `requests` alone, unless the script is to be `probed`.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        paths: Sequence[str] = COMPLETIONS,
        routes: Mapping[str, Responder] | None = None,
        probed: bool = False,
    ) -> None:
        self.requests: list[HttpRequest] = []
        self.asked: list[HttpRequest] = []
        self.in_flight = self.max_in_flight = 0
        self._script, self._paths, self._routes = script, paths, dict(routes or {})
        self._probed = probed

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the JSON bodies that the script answered, in order of arrival."""
        return [request.body for request in self.asked]

    def serve(self, *, port: int = 0) -> AbstractAsyncContextManager[str]:
        """Serve in the running event loop and yield the base URL `http://127.0.0.1:PORT/v1`.

        Port 0 is a free one.
        """
        return serve_app(self.app(), port=port)

    def serve_in_thread(self) -> AbstractContextManager[str]:
        """Serve from a thread and yield the base URL.

        Use it for callers that run their own event loop or process.
        """
        return serve_in_thread(self.app())

    def app(self) -> web.Application:
        """Build a new application with the same record, for callers that serve it on their own."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for path, responder in self._routes.items():
            app.router.add_route("*", path, partial(self._routed, responder))
        for path in self._paths if self._script != () else ():
            app.router.add_route("*" if self._paths == EVERY_PATH else "POST", path, self._scripted)
        return app

    async def _routed(self, responder: Responder, http: web.Request) -> web.StreamResponse:
        request = _request(http, await http.read())
        self.requests.append(request)
        return await _respond(responder, request)

    async def _scripted(self, http: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            raw = await http.read()  # before the number, since others may arrive meanwhile
            if not self._probed and PROMPT.encode() in raw:
                self.requests.append(request := _request(http, raw))
                return await _respond(lambda asked: answer(IGNORES), request)
            request = _request(http, raw, number=len(self.asked) + 1, in_flight=self.in_flight)
            self.requests.append(request)
            self.asked.append(request)
            script = self._script
            responder = script if callable(script) else script[min(request.number, len(script)) - 1]
            return await _respond(responder, request)
        finally:
            self.in_flight -= 1


async def _respond(responder: Responder, request: HttpRequest) -> web.StreamResponse:
    picked = responder(request)
    made = await picked if isinstance(picked, Awaitable) else picked
    return made if isinstance(made, web.StreamResponse) else await made(request)


def _request(http: web.Request, raw: bytes, *, number: int = 0, in_flight: int = 0) -> HttpRequest:
    return HttpRequest(
        method=http.method,
        path=http.path,
        headers=http.headers,
        raw=raw,
        number=number,
        in_flight=in_flight,
        http=http,
    )


def serve(server: ScriptedServer | web.Application) -> AbstractAsyncContextManager[str]:
    """Serve a scripted server or an application and yield its base URL.

    The application may be a simulated endpoint.
    """
    return server.serve() if isinstance(server, ScriptedServer) else serve_app(server)


@contextmanager
def serve_in_thread(app: web.Application) -> Iterator[str]:
    """Serve an application from a thread until the end of the block, and yield its base URL."""
    loop, url, ended = asyncio.new_event_loop(), Future[str](), asyncio.Event()

    async def main() -> None:
        async with serve_app(app) as at:
            url.set_result(at)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        yield url.result(30)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()
