"""Servers that run together: started at once, ready together, ended together, and over when one of
them ends.
"""

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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launchers._logs.causes import Cause, cause
from launchers._machine import hosts, local_gpus, lock_files, neighbours
from launchers._machine.local_gpus import Gpu
from launchers._machine.memory_kills import Kills, kills
from launchers._machine.neighbours import BACK_S, PAUSE_S
from launchers._options import LOOPBACK
from launchers._process import environment
from launchers._process.server_process import LOG_LINES, ServerProcess, server_process, while_alive
from launchers._trtllm.command_line import Server
from serve_eval.errors import LaunchError

SLACK_MIB = 512
"""By how much the memory in use may differ from what it was."""
SLOW_END_S = 2.0
"""Seconds after which a line names the servers that have not ended."""
LEFT_S = 5.0
"""How long what is killed at the very end may take to go."""
FIRST_PORT = 10_000
"""The first port that is taken where the user names none: well-known services are below."""
PORTS_TRIED = 256
GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class Running:
    """A server with its process."""

    server: Server
    process: ServerProcess
    began: float
    kills: Kills
    """As they were before it began."""

    def describe_end(self) -> LaunchError | None:
        """The error that tells of its end; None while it runs."""
        if (code := self.process.exit_code()) is None:
            return None
        how = (
            f"signal {code - 128}"
            if code > 128
            else f"signal {-code}"
            if code < 0
            else f"exit code {code}"
        )
        error = self.error(
            f"{self.server.name} ended with {how} after {time.monotonic() - self.began:.0f} s"
        )
        if how == "signal 9":
            error.hint = f"{self._describe_kill()} {error.hint}"
        return error

    def _describe_kill(self) -> str:
        """Say what is known of a death by SIGKILL: want of main memory is blamed only where
        something tells of it.
        """
        now = kills()
        if self.server.here and (told := now.since(self.kills)):
            return told
        if self.server.here and now.is_known():
            return (
                "Something sent SIGKILL, not the kernel for want of main memory: a person, a job's"
                " limit, a watchdog."
            )
        return (
            "Something sent SIGKILL: dmesg of its machine tells whether the kernel did it for want"
            " of main memory."
        )

    def error(self, message: str) -> LaunchError:
        """With the known cause and the last lines of the log."""
        return self._error(message, "", cause(self.process.log()))

    def dead(self, line: str, known: Cause | None) -> LaunchError:
        """Return the error that tells that it is dead by this line of its log, though its process
        lives.
        """
        message = (
            f"{self.server.name} is dead, though its process lives, after"
            f" {time.monotonic() - self.began:.0f} s"
        )
        return self._error(message, line, (known.told, known.hint) if known else cause(line))

    def _error(self, message: str, line: str, known: tuple[str, str] | None) -> LaunchError:
        hint, last = (
            f"Its log is {self.process.log_file}.",
            self.process.log().splitlines()[-LOG_LINES:],
        )
        if known:
            message, hint = f"{message}: {known[0]}", f"{known[1]} {hint}"
        first = [line] if line and not any(line in one for one in last) else []
        return LaunchError("\n  ".join([message, *first, *last]), hint=hint)

    def last_line(self) -> str:
        lines = [line.strip() for line in self.process.log(2048).splitlines() if line.strip()]
        return lines[-1][:160] if lines else "nothing yet"


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
    """Starts the servers, each in a process group with a log of its own, and ends them all on every
    way out.

    When one of them ends, the block is cancelled and LaunchError raised in its place. `held` are
    locks that the caller has already. Raises LaunchError too when a GPU, a port or `log_dir` is
    used by another launch, when a GPU is used by anybody, when the machine has too few, or when an
    executable is not there, and anywhere but on Linux.
    """
    if sys.platform != "linux":
        raise LaunchError(
            "servers are launched on Linux only", hint="Start them elsewhere and give --base-url."
        )
    for server in servers:
        if (
            shutil.which(
                server.argv[0], path=environment.over(environ, server.env).get("PATH", os.defpath)
            )
            is None
        ):
            raise LaunchError(
                f"{server.argv[0]} is not there",
                hint="Put it on PATH, or set launcher.command to its full path.",
            )
    local = [server for server in servers if server.here]
    used: Mapping[Gpu, int | None] | None = (
        await asyncio.to_thread(local_gpus.memory_used) if local else None
    )
    named = [gpu for server in local for gpu in server.place.gpus]
    gpus = local_gpus.check_there(named, used) if local_gpus.any_here(used) else []
    mark, before = uuid.uuid4().hex, kills()
    running: list[Running] = []
    names = {gpu.lock: f"GPU {gpu.number}" for gpu in gpus}
    ports = [server.place.port for server in local if server.place.port]  # 0: it finds one itself
    things = [*names, *(f"port-{port}" for port in ports), f"folder-{log_dir}"]
    with lock_files.lock_names(things, held=held, shown=names) as locks:
        used = await neighbours.check_free(gpus, used, notify)
        for server in local:
            _check_free(server)
        for line in neighbours.warnings(named, gpus, used):
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
    """Ends them together: one after the other they would take the time of all. Tells of those that
    take long.
    """

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


def first_end(running: Iterable[Running]) -> LaunchError | None:
    return next((error for one in running if (error := one.describe_end()) is not None), None)


# ------------------------------------------------------------------------------------------------
# before and after


def free_ports(host: str, port: int | None, others: int = 0) -> list[int]:
    """Of the front door on `host` the given port, or one that no server listens on, and such ports
    of the loopback for others. Fresh ones for every launch: versions differ in whether one can be
    used again at once.
    """
    [front] = [port] if port is not None else _find_unused(host, 1)
    return [front, *[one for one in _find_unused(LOOPBACK, others + 1) if one != front][:others]]


def _find_unused(host: str, count: int) -> list[int]:
    """Ports below those that the kernel gives to connections: one of these may be taken before the
    server binds it.
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
                raise LaunchError(f"{host} is no address of this machine: {error}") from error
            held.append(one.getsockname()[1])
        return held


def _first_given() -> int:
    """The first port that the kernel gives to a connection; where it gives all, none is below."""
    try:
        return max(int(GIVEN_PORTS.read_text().split()[0]), FIRST_PORT)
    except (OSError, ValueError, IndexError):
        return FIRST_PORT


def _check_free(server: Server) -> None:
    host, port = server.place.host, server.place.port
    try:
        socket.create_server((host, port), family=hosts.family(host)).close()
    except OSError as error:
        raise LaunchError(
            f"{server.name}: {hosts.authority(host, port)} cannot be used:"
            f" {error.strerror or error}",
            hint=(
                "Another server listens there, or did a minute ago: leave `port` out, and a free"
                " one is taken."
            ),
        ) from error


def _write(servers: Sequence[Server], log_dir: Path) -> None:
    """The config files, and what is started as a script that a person can run."""
    for folder in (log_dir, *(one for server in servers for one in server.folders)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for server in servers:
        if server.report is not None:  # of an earlier session
            server.report.unlink(missing_ok=True)
    lines = [shlex.join(server.line()) + " &" for server in servers]
    script = (
        "#!/bin/sh\n# What was started, with those variables of the environment alone that servers"
        " need.\n" + "\n".join(lines) + "\nwait\n"
    )
    for path, text in {
        log_dir / "commands.sh": script,
        **{p: t for s in servers for p, t in s.files.items()},
    }.items():
        path.unlink(
            missing_ok=True
        )  # one that is there may be for others to read, or lead elsewhere
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w"
        ) as file:
            file.write(text)


async def _check_gone(mark: str, notify: Callable[[str], None]) -> None:
    """Kills what is left of the launch, such as what a supervisor that was killed itself left
    behind, and tells of what stays all the same.
    """
    deadline = time.monotonic() + LEFT_S
    while left := _find_marked(mark):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            notify(f"warning: processes of the servers are left: {', '.join(map(str, left))}")
            return
        await asyncio.sleep(0.1)


def _find_marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment; none where there is no /proc."""
    wanted, found = f"{environment.MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        if folder.name.isdecimal():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


async def _check_memory(
    gpus: Sequence[Gpu], before: Mapping[Gpu, int | None] | None, notify: Callable[[str], None]
) -> None:
    """Waits until the GPUs have as much memory free as before, and tells of those that have not."""
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
            notify(f"warning: memory did not come back within {BACK_S:g} s: {each}")
            return
        await asyncio.sleep(PAUSE_S)
