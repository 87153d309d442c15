"""Run servers together: they start and end together, and the end of one ends all."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shlex
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

from serve_eval.errors import LaunchError, NoProgramError
from serve_eval.launchers._fleet.running import Running, first_end
from serve_eval.launchers._machine import hosts, local_gpus, lock_files
from serve_eval.launchers._machine.local_gpus import BACK_S, PAUSE_S, Gpu
from serve_eval.launchers._machine.memory_kills import kills
from serve_eval.launchers._options import LOOPBACK
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.server_process import server_process, while_alive
from serve_eval.launchers._process.supervisor import descendants
from serve_eval.launchers._trtllm.command_line import Server

SLACK_MIB = 512
"""MiB by which the memory in use may differ from what it was."""
SLOW_END_S = 2.0
"""Seconds after which a message names the servers that have not ended."""
LEFT_S = 5.0
"""Seconds that processes killed at the very end may take to go."""
FIRST_PORT = 10_000
"""First port to choose if the user names none: well-known services use lower ones."""
PORTS_TRIED = 256
GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@asynccontextmanager
async def fleet(
    servers: Sequence[Server],
    *,
    log_dir: Path,
    notify: Callable[[str], None],
    stop_timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    held: Mapping[str, int] | None = None,
) -> AsyncIterator[list[Running]]:
    """Start the servers, each with its process group and log, and end all on every way out.

    If one of them ends, the block is cancelled and raises LaunchError instead. `held` are locks
    that the caller already has. Raises LaunchError too if another launch uses a GPU, a port or
    `log_dir`, if a GPU is in use, if the machine has too few GPUs, if an executable is missing, and
    on any system but Linux.
    """
    if sys.platform != "linux":
        raise LaunchError(
            "servers are launched on Linux only",
            hint="Start the servers elsewhere and give --base-url.",
        )
    for server in servers:
        if (
            shutil.which(
                server.argv[0], path=environment.over(environ, server.env).get("PATH", os.defpath)
            )
            is None
        ):
            raise NoProgramError(server.argv[0])
    local = [server for server in servers if server.here]
    used: Mapping[Gpu, int | None] | None = (
        await asyncio.to_thread(local_gpus.memory_used) if local else None
    )
    named = [gpu for server in local for gpu in server.place.gpus]
    gpus = local_gpus.check_there(named, used) if local_gpus.any_here(used) else []
    mark, before = uuid.uuid4().hex, kills()
    running: list[Running] = []
    names = {gpu.lock: f"GPU {gpu.number}" for gpu in gpus}
    ports = [port for server in local for port in _list_ports(server) if port]
    things = [*names, *(f"port-{port}" for port in ports), f"folder-{log_dir}"]
    with lock_files.lock_names(things, held=held, shown=names) as locks:
        used = await local_gpus.check_free(gpus, used, notify)
        for server in local:
            _check_free(server)
        for line in local_gpus.warnings(named, gpus, used):
            notify(line)
        _write(servers, log_dir)
        try:
            async with AsyncExitStack() as stack:
                for server in servers:
                    env = environment.over(
                        environment.inherit(environ, server.pass_env), server.env
                    )
                    process = await stack.enter_async_context(
                        server_process(
                            server.argv,
                            log_file=log_dir / f"{server.name}.log",
                            env={**env, environment.MARK: mark},
                            grace_s=stop_timeout_s,
                            keep=tuple(locks.values()),
                            at_end=server.at_end,
                            to_stop=server.to_stop,
                        )
                    )
                    running.append(Running(server, process, time.monotonic(), before))
                    known = server.place.gpus and (gpus or not server.here)
                    places = [f"GPU {','.join(server.place.gpus)}"] if known else []
                    places += [] if server.here else [server.place.reached_at]
                    notify(
                        f"{server.name}: started{' on ' * bool(places)}{' of '.join(places)}, log"
                        f" {process.log_file}"
                    )
                try:
                    async with while_alive(lambda: first_end(running)):
                        yield running
                finally:
                    await _end(running, stop_timeout_s, notify)
        finally:
            await _check_gone(mark, notify)
            await _check_memory(gpus, used, notify)


async def _end(
    running: Sequence[Running], stop_timeout_s: float, notify: Callable[[str], None]
) -> None:
    """End them together, as one after the other takes longer, and name those that are slow."""

    def slow() -> None:
        if left := [one for one in running if one.process.exit_code() is None]:
            names = ", ".join(one.server.name for one in left)
            longest_s = min(stop_timeout_s, max(one.process.stop_s for one in left))
            notify(
                f"waiting up to {longest_s:g} s for the end of {names}; Ctrl-C kills what is"
                " left now"
            )

    timer = asyncio.get_running_loop().call_later(SLOW_END_S, slow)
    try:
        await asyncio.gather(*(one.process.stop() for one in running))
    finally:
        timer.cancel()


# ------------------------------------------------------------------------------------------------
# before and after


def free_ports(host: str, port: int | None, others: int = 0) -> list[int]:
    """Return the port for the endpoint on `host`, and free loopback ports for the others.

    The first is the given port or a free one. Every launch gets new ones, since versions differ in
    whether a port can be used again immediately.
    """
    [front] = [port] if port is not None else _find_unused(host, 1)
    return [front, *[one for one in _find_unused(LOOPBACK, others + 1) if one != front][:others]]


def _find_unused(host: str, count: int) -> list[int]:
    """Return free ports below those that the kernel gives to connections.

    A connection could take a higher one before the server binds it.
    """
    first_given = _first_given()
    chosen = random.SystemRandom().sample(
        range(FIRST_PORT, first_given), min(PORTS_TRIED, first_given - FIRST_PORT)
    )
    with ExitStack() as stack:
        held: list[int] = []
        for port in [*chosen, *[0] * count]:
            if len(held) == count:
                break
            try:
                one = stack.enter_context(hosts.bind(host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise LaunchError(f"{host} is not an address of this machine: {error}") from error
            held.append(one.getsockname()[1])
        return held


def _first_given() -> int:
    """Return the first port that the kernel gives to connections, at least FIRST_PORT."""
    try:
        return max(int(GIVEN_PORTS.read_text().split()[0]), FIRST_PORT)
    except (OSError, ValueError, IndexError):
        return FIRST_PORT


def _list_ports(server: Server) -> tuple[int, ...]:
    return (server.place.port, *server.further_ports)


def _check_free(server: Server) -> None:
    host = server.place.host
    for port in _list_ports(server):
        try:
            socket.create_server((host, port), family=hosts.family(host)).close()
        except OSError as error:
            raise LaunchError(
                f"{server.name}: {hosts.authority(host, port)} cannot be used:"
                f" {error.strerror or error}",
                hint=(
                    "Another server listens there, or did a minute ago: leave `port` out to"
                    " use a free one."
                ),
            ) from error


def _write(servers: Sequence[Server], log_dir: Path) -> None:
    """Write the config files, and the command lines as a script that a person can run."""
    for folder in (log_dir, *(one for server in servers for one in server.folders)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for server in servers:
        if server.report is not None:  # from an earlier session
            server.report.unlink(missing_ok=True)
    lines = [shlex.join(server.line()) + " &" for server in servers]
    script = (
        "#!/bin/sh\n# What was started, with only those variables of the environment"
        " that servers need.\n" + "\n".join(lines) + "\nwait\n"
    )
    for path, text in {
        log_dir / "commands.sh": script,
        **{p: t for s in servers for p, t in s.files.items()},
    }.items():
        path.unlink(
            missing_ok=True
            # A file that is there may be readable by others, or be a link.
        )
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w"
        ) as file:
            file.write(text)


async def _check_gone(mark: str, notify: Callable[[str], None]) -> None:
    """Kill the rest of the launch, and warn of processes that stay.

    A supervisor that was killed itself may leave processes behind.
    """
    deadline = time.monotonic() + LEFT_S
    while left := _find_marked(mark):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            notify(f"warning: processes of the servers still run: {', '.join(map(str, left))}")
            return
        await asyncio.sleep(0.1)


def _find_marked(mark: str) -> list[int]:
    """Return the processes with the mark in their environment, and all below them.

    Some processes, vLLM's engines among them, overwrite their environment to show a title. None
    without /proc.
    """
    wanted, found = f"{environment.MARK}={mark}".encode(), set[int]()
    for folder in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        if folder.name.isdecimal():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found |= {int(folder.name), *descendants(int(folder.name))}
    return sorted(found)


async def _check_memory(
    gpus: Sequence[Gpu], before: Mapping[Gpu, int | None] | None, notify: Callable[[str], None]
) -> None:
    """Wait until the GPUs have as much memory free as before, and warn of those that have not."""
    known = {gpu: mib for gpu, mib in (before or {}).items() if gpu in gpus and mib is not None}
    deadline = time.monotonic() + BACK_S
    while known and (now := await asyncio.to_thread(local_gpus.memory_used)) is not None:
        missing = {
            gpu: used for gpu, mib in known.items() if (used := now.get(gpu) or 0) > mib + SLACK_MIB
        }
        if not missing:
            return
        if time.monotonic() > deadline:
            each = ", ".join(
                f"GPU {gpu.number} {mib} MiB (before {known[gpu]})" for gpu, mib in missing.items()
            )
            notify(f"warning: memory was not released within {BACK_S:g} s: {each}")
            return
        await asyncio.sleep(PAUSE_S)
