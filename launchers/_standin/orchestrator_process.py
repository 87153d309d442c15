"""The process of an orchestrator: its file, its port, and its end."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from serve_eval.launchers._standin.config import orchestrator
from serve_eval.launchers._standin.faults import find_faults
from serve_eval.launchers._standin.fleet import number_in_fleet, run_coordinator
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.serving import bind, serve
from serve_eval.launchers._standin.starting import Ended


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
