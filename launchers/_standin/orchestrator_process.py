"""Run the process of an orchestrator, alone or as one of a fleet on one port.

The coordinator of main routes for them. Here each process routes for itself, which clients of
routers without a state cannot see.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.config import Orchestrator, orchestrator
from serve_eval.launchers._standin.faults import find_faults
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.serving import Ended, application, bind, serve


def run_orchestrator(params: dict[str, Any], flavour: Flavour) -> None:
    """Serve as the command line and its file say. Raise Ended, or what ends the real software."""
    path = params["config_file"]
    config = orchestrator(yaml.safe_load(Path(path).read_text()) or {}, flavour)
    if style := params.get("schedule_style"):
        config = replace(config, schedule_style=style)
    member = number_in_fleet()
    if config.num_workers > 1 and member is None:
        run_coordinator(config, flavour)
        return
    listener = bind(
        config.hostname,
        config.port,  # type: ignore[arg-type]
        flavour,
        shared=member is not None,
    )
    trouble = find_faults("disaggregated", None, config.port, path)
    default = "3" if flavour == "main" else "0"
    code = int(os.environ.get("STANDIN_START_TIMEOUT_RC", default))
    # Imported while the port is bound, like everything slow.
    from serve_eval.launchers._standin.orchestrator import Orchestrating

    server = Orchestrating(config, trouble, flavour, params["request_timeout"], process=member or 0)

    async def workers() -> None:
        if not await server.workers_healthy(params["server_start_timeout"]):
            sys.stderr.write("TimeoutError: Timeout waiting for context and generation servers\n")
            raise Ended(code)

    report = params.get("report_addr")
    running = serve(
        server.app,
        listener,
        keepalive_s=10.0,
        before=None if config.cluster else workers,
        meanwhile=server.watching(),
        hangs=trouble.ignore_sigterm,
        report=Path(report) if report else None,
    )
    asyncio.run(running)


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
