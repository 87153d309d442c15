"""A server of ours as a process of its own, from both sides: started by a launcher, and ended with
it.
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

from launchers._process.server_process import ServerProcess, server_process, while_alive
from serve_eval.errors import PlanError, install_hint
from serve_eval.processes.environment import inherit

READY_S = 60.0
"""How long the server may take to start."""
PAUSE_S = 0.05
"""How late it may be noticed that it has."""


def check_installed(launcher: str) -> None:
    """Check that a server of ours can run here. Raises PlanError where the extra `servers` is not
    installed.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise PlanError(
            f"the launcher {launcher} needs the package aiohttp", hint=install_hint("servers")
        )


@asynccontextmanager
async def own_server(
    command: Sequence[str], *, ready_file: Path, log_file: Path
) -> AsyncIterator[tuple[str, ServerProcess]]:
    """Runs a command that ends in `serve_until_ended` for the length of the block, and yields its
    base URL once it listens there. Raises LaunchError when it does not start, and in place of the
    block when it ends by itself.
    """
    log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready_file.unlink(missing_ok=True)
    async with server_process(command, log_file=log_file, env=inherit(os.environ)) as server:

        async def base_url() -> str | None:
            return ready_file.read_text() if ready_file.exists() else None

        url = await server.until(base_url, timeout_s=READY_S, longest_pause_s=PAUSE_S)
        ready_file.unlink()
        async with while_alive(server.describe_end):
            yield url, server


async def serve_until_ended(
    serving: AbstractAsyncContextManager[str], name: str, ready_file: Path | None
) -> None:
    """Serves until SIGTERM, SIGINT or the end of the process that holds the other end of stdin.
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
            partial = ready_file.with_name(ready_file.name + ".partial")
            partial.write_text(base_url)
            partial.replace(ready_file)
        await ended.wait()
