"""A fleet: several orchestrator processes on one port, and their coordinator on the port below.

The coordinator of main routes for them. Here each process routes for itself, which clients of
routers without a state cannot see.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from aiohttp import web

from serve_eval.launchers._http.errors import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.config import Orchestrator
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.serving import application, bind, serve

MEMBER = "STANDIN_FLEET_MEMBER"
"""Variable with the number of a process of a fleet, which the coordinator starts."""
END_S = 5.0


def number_in_fleet() -> int | None:
    """Return the number of this process in its fleet; None if it is in none."""
    told = os.environ.get(MEMBER)
    return None if told is None else int(told)


def run_coordinator(config: Orchestrator, flavour: Flavour) -> None:
    """Start the processes of a fleet, with our command line, and answer for them until the end."""
    listener = bind(config.hostname, int(config.port) - 1, flavour)
    members = [
        subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, *sys.orig_argv[1:]], env={**os.environ, MEMBER: str(number)}
        )
        for number in range(config.num_workers)
    ]
    app = application()

    async def health(request: web.Request) -> web.Response:
        there = all(one.poll() is None for one in members)
        return web.Response(status=200 if there else 503)

    async def cluster_info(request: web.Request) -> web.Response:
        return json_response(200, encode({"is_ready": True}))

    app.router.add_get("/health", health)
    app.router.add_get("/cluster_info", cluster_info)
    try:
        asyncio.run(serve(app, listener, keepalive_s=10.0))
    finally:
        for one in members:
            one.terminate()
        for one in members:
            try:
                one.wait(END_S)
            except subprocess.TimeoutExpired:
                one.kill()
