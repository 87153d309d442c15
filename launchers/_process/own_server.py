"""Run our own servers as separate processes: the launcher's side and the server's side.

A server ends with its launcher.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from serve_eval.errors import PlanError, install_hint
from serve_eval.launchers._process.server_process import ServerProcess, server_process, while_alive
from serve_eval.processes.child_process import CLEAN_FOLDER, build_environment, inherit
from serve_eval.whole_file import write_whole

READY_S = 60.0
"""Seconds that the server may take to start."""
PAUSE_S = 0.05
"""Seconds between two checks whether it has started."""


def check_installed(launcher: str) -> None:
    """Raise PlanError if the extra `servers`, which our servers need, is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise PlanError(
            f"the launcher {launcher} needs the package aiohttp", hint=install_hint("servers")
        )


@asynccontextmanager
async def own_server(
    command: Sequence[str], *, ready_file: Path, log_file: Path
) -> AsyncIterator[tuple[str, ServerProcess]]:
    """Run a command that ends in `serve_until_ended` for the block, and yield its base URL.

    Yields once the server listens there. Raises LaunchError if it does not start, and cancels the
    block with LaunchError if it ends early.
    """
    log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready_file.unlink(missing_ok=True)
    env = build_environment(inherit(os.environ))
    async with server_process(command, log_file=log_file, env=env, folder=CLEAN_FOLDER) as server:

        async def base_url() -> str | None:
            return ready_file.read_text() if ready_file.exists() else None

        url = await server.until(base_url, timeout_s=READY_S, longest_pause_s=PAUSE_S)
        ready_file.unlink()
        async with while_alive(server.describe_end):
            yield url, server


async def serve_until_ended(
    serving: AbstractAsyncContextManager[str], name: str, ready_file: Path | None
) -> None:
    """Serve until SIGTERM, SIGINT or the end of the process at the other end of stdin.

    `ready_file` gets the base URL once it can be used.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def read_stdin() -> None:
        if not os.read(0, 65536):
            loop.remove_reader(0)
            ended.set()

    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        loop.add_reader(0, read_stdin)
    async with serving as base_url:
        sys.stdout.write(f"{name} at {base_url}\n")
        sys.stdout.flush()
        if ready_file is not None:
            write_whole(ready_file, base_url.encode())
        await ended.wait()
