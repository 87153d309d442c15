"""Run a server process like uvicorn's, which may listen while it loads its model.

An open change does this (PR 17787); the merged versions refuse connections until they have loaded.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path

from aiohttp import web

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.options import Flavour

MAX_BODY_BYTES = 64 * 1024 * 1024
_FOR_EVER = 1e9
EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def log(message: str) -> None:
    sys.stderr.write(f"INFO:     {message}\n")
    sys.stderr.flush()


def note(what: str) -> None:
    """Add a line with the time to the file that STANDIN_TIMES names."""
    if times := os.environ.get("STANDIN_TIMES"):
        with Path(times).open("a") as file:
            file.write(f"{time.time()} {what}\n")


def bind(host: str, port: int, flavour: Flavour, *, shared: bool = False) -> socket.socket:
    """Return a socket that is bound but does not listen; other processes may share its port.

    The 1.2 line does not set SO_REUSEADDR. Raises RuntimeError.
    """
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if flavour == "main":
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((host, port))
    except OSError as error:
        server.close()
        raise RuntimeError(f"Failed to bind socket to {host}:{port}: {error}") from error
    return server


def application() -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_as_fastapi])
    app.on_response_prepare.append(_sign)
    return app


@web.middleware
async def _as_fastapi(
    request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return json_response(error.status, encode({"detail": error.reason}))


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"


async def serve(
    app: web.Application,
    listener: socket.socket,
    *,
    keepalive_s: float,
    before: Callable[[], Awaitable[None]] | None = None,
    meanwhile: AbstractAsyncContextManager[None] | None = None,
    early: bool = True,
    hangs: bool = False,
    report: Path | None = None,
    loading: Loading | None = None,
) -> None:
    """Serve until a signal comes, which then ends the process.

    `before` runs first, while nothing listens and, as in uvicorn's startup, no signal is heeded
    until it has ended. `meanwhile` is entered before listening (`early`) or
    after, and left when the open requests are finished; with `hangs` it is never left. `report` is
    the file of --report_addr. `loading` runs after the port is open.
    """
    serving = False
    caught, ended = _catch_signals(lambda: serving)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=keepalive_s,
        shutdown_timeout=_FOR_EVER,
    )
    await runner.setup()
    log(f"Started server process [{os.getpid()}]")
    log("Waiting for application startup.")
    task, entered = meanwhile or nullcontext(), AsyncExitStack()
    try:
        if before is not None:
            await before()
        if not ended.is_set():
            serving = True
            if early:
                await entered.enter_async_context(task)
            log("Application startup complete.")
            await web.SockSite(runner, listener, backlog=2048).start()
            host, port = listener.getsockname()[:2]
            log(f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
            if report:
                _write_address(report, host, port)
            if loading is not None:
                await _unless(ended, loading.run())
            note(f"listens {host}:{port}")
            if not early and not ended.is_set():
                await entered.enter_async_context(task)
            await ended.wait()
            log("Shutting down")
            await _finish(runner)
            if hangs:
                await asyncio.Event().wait()
            await entered.aclose()
    finally:
        await runner.cleanup()
        listener.close()
    log(f"Finished server process [{os.getpid()}]")
    for number in caught[:1]:
        asyncio.get_running_loop().remove_signal_handler(number)
        _die(number)


def _catch_signals(serving: Callable[[], bool]) -> tuple[list[signal.Signals], asyncio.Event]:
    """Return the signals that come from now on, and an event that the first one sets.

    A second SIGINT ends a process that is `serving` at once.
    """
    ended, caught = asyncio.Event(), list[signal.Signals]()

    def end(number: signal.Signals) -> None:
        if number is signal.SIGINT and caught and serving():
            _die(number)
        caught.append(number)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    return caught, ended


def _die(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


async def _finish(runner: web.AppRunner) -> None:
    """Stop accepting connections and finish the open requests, without a time limit."""
    for site in list(runner.sites):
        await site.stop()
    if runner.server is not None:
        runner.server.pre_shutdown()  # closes idle connections
        await runner.server.shutdown(_FOR_EVER)


async def _unless(ended: asyncio.Event, start: Awaitable[None]) -> bool:
    """Return True if the start finished before a signal."""
    tasks = [asyncio.ensure_future(start), asyncio.ensure_future(ended.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if tasks[0].done() and not tasks[0].cancelled() and (error := tasks[0].exception()):
        raise error
    return not ended.is_set()


def _write_address(report: Path, host: str, port: int) -> None:
    name = socket.gethostname() if host in EVERY_ADDRESS else f"[{host}]" if ":" in host else host
    partial = report.with_name(report.name + ".partial")
    partial.write_text(f"{name}:{port}\n")
    partial.replace(report)


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
