"""Run a server as a separate process, from its start to its end.

A server ends with its launcher.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from serve_eval.errors import EndpointError, LaunchError, PlanError, install_hint
from serve_eval.launchers._process.supervisor import AT_END_S
from serve_eval.processes.child_process import CLEAN_FOLDER, build_environment, inherit
from serve_eval.whole_file import write_whole

STOP_S = 10.0
"""Seconds that a server may take to end after SIGTERM, before SIGKILL."""
KILL_S = 5.0
"""Seconds to wait for a process to end after SIGKILL."""
WATCH_S = 0.25
"""Seconds between two checks of a running server, and the longest delay until its end is
noticed."""
NOTICED_S = 1.5
"""Seconds to wait after a failed request for the news that its server has ended."""
LOG_LINES = 15
"""Lines of the log that an error quotes."""

SUPERVISOR = Path(__file__).with_name("supervisor.py")

T = TypeVar("T")


class ServerProcess:
    """A server that `server_process` started. `pid` is also the id of its process group."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        log_file: Path,
        log_start: int,
        supervised_s: float | None = None,
    ) -> None:
        self.pid, self.log_file, self.log_start = process.pid, log_file, log_start
        self._process = process
        # Never kill a supervisor that may still have to end its server. A second SIGTERM makes it
        # do so immediately.
        self.stop_s = STOP_S if supervised_s is None else supervised_s + 2 * KILL_S
        self._at_once = signal.SIGKILL if supervised_s is None else signal.SIGTERM

    def exit_code(self) -> int | None:
        """Return the exit code; None while the server runs.

        The first call after the end also kills the rest of the process group.
        """
        if self._process.returncode is None and self._process.poll() is not None:
            # Do it now: later, another group may have the same number.
            self._signal(signal.SIGKILL)
        return self._process.returncode

    def describe_end(self, when: str = "") -> LaunchError | None:
        """Return the error for the server's end, with the end of its log; None while it runs."""
        if (code := self.exit_code()) is None:
            return None
        ending = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return self._error(f"the server ended with {ending}{when}")

    async def until(
        self,
        probe: Callable[[], Awaitable[T | None]],
        *,
        timeout_s: float,
        longest_pause_s: float = 0.5,
    ) -> T:
        """Return what `probe` gives once it is not None.

        The pauses between calls grow from 0.02 to `longest_pause_s` seconds.

        Raises LaunchError with the last lines of the log if the server ends before that, or after
        `timeout_s` seconds.
        """
        clock, pause_s = asyncio.get_running_loop().time, 0.02
        deadline = clock() + timeout_s
        while (found := await probe()) is None:
            if (ended := self.describe_end(" before it was ready")) is not None:
                raise ended
            if clock() > deadline:
                raise self._error(f"the server is not ready after {timeout_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, longest_pause_s)
        return found

    def hurry(self, seconds: float) -> None:
        """Reduce the time between SIGTERM and SIGKILL to at most this."""
        self.stop_s = min(self.stop_s, seconds)

    async def stop(self) -> None:
        """End the server and its group: SIGTERM, then SIGKILL.

        SIGKILL follows after `stop_s` seconds or when we are cancelled.
        """
        try:
            if self.exit_code() is None:
                self._signal(signal.SIGTERM)
                await self._wait_for_end(self.stop_s)
        finally:
            for number in (self._at_once, signal.SIGKILL):
                if self.exit_code() is None:
                    self._signal(number)
                    await self._wait_for_end(2 * KILL_S)
            if self._process.stdin is not None:
                self._process.stdin.close()

    async def _wait_for_end(self, timeout_s: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        # Poll with exit_code(): only reaping the process reports its end. Reaping frees the number
        # of the group, so the group must be killed right after it.
        while self.exit_code() is None and clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        # macOS answers EPERM for a group that has only a zombie left
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def log(self, last_bytes: int = 16384) -> str:
        """Return the end of the server's own output; empty if the file is gone."""
        with suppress(OSError), self.log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start, size - last_bytes))
            return file.read().decode(errors="replace")
        return ""

    def _error(self, message: str) -> LaunchError:
        lines = self.log().splitlines()[-LOG_LINES:]
        return LaunchError("\n  ".join([message, *lines]), hint=f"Its log is {self.log_file}.")


@asynccontextmanager
async def while_alive(ended: Callable[[], LaunchError | None]) -> AsyncIterator[None]:
    """Stop the block and raise the error of `ended` as soon as it returns one."""
    task = asyncio.current_task()
    assert task is not None
    cancelling, death = task.cancelling(), None

    async def watch() -> None:
        nonlocal death
        while death is None:
            await asyncio.sleep(WATCH_S)
            death = ended()
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if death is not None and task.uncancel() <= cancelling:
            raise death from None
        raise
    except Exception as error:
        # A request may fail before the end of the server that caused it is noticed.
        deadline = time.monotonic() + (NOTICED_S if isinstance(error, EndpointError) else 0.0)
        watcher.cancel()
        while (found := death or ended()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(WATCH_S / 5)
        if death is not None:
            task.uncancel()
        if found is not None and not isinstance(error, LaunchError):
            raise found from error
        raise
    finally:
        watcher.cancel()


def supervise(
    command: Sequence[str],
    *,
    grace_s: float,
    to_stop: Sequence[str] = (),
    at_end: Sequence[str] = (),
) -> list[str]:
    """Return a command line that runs the command under a supervisor.

    The supervisor ends the command when its own stdin is closed.
    """
    counted = [str(len(to_stop)), *to_stop, str(len(at_end)), *at_end]
    return [sys.executable, "-I", str(SUPERVISOR), str(grace_s), *counted, *command]


@asynccontextmanager
async def server_process(
    command: Sequence[str],
    *,
    log_file: Path,
    env: Mapping[str, str] | None = None,
    grace_s: float | None = None,
    keep: Sequence[int] = (),
    at_end: Sequence[str] = (),
    to_stop: Sequence[str] = (),
    folder: str | None = None,
) -> AsyncIterator[ServerProcess]:
    """Run a command in its own session until the block ends, in any way.

    Appends its output to `log_file` (mode 0600). Its stdin is a pipe that only we hold, so a server
    that watches it ends when we do, even if we are killed. Any other server needs `grace_s`. It
    then runs under a supervisor, which sends SIGTERM when we end and waits `grace_s` seconds before
    SIGKILL. The supervisor runs the command `to_stop`, if given, in place of SIGTERM, and `at_end`
    last; `pid` is its id. The process inherits the descriptors `keep`, our environment if `env` is
    None and our working folder if `folder` is None. Raises LaunchError if the command cannot run.
    """
    if grace_s is not None:
        command = supervise(command, grace_s=grace_s, to_stop=to_stop, at_end=at_end)
        grace_s += AT_END_S if at_end else 0
    server = _start(command, log_file, env, grace_s, keep, folder)
    try:
        yield server
    finally:
        await server.stop()
        if at_end and server.exit_code() == -signal.SIGKILL:
            # The supervisor was killed, so it did not run `at_end`.
            with suppress(OSError, subprocess.SubprocessError):
                await asyncio.to_thread(
                    subprocess.run, at_end, stdin=subprocess.DEVNULL, env=env, timeout=AT_END_S
                )


def _start(
    command: Sequence[str],
    log_file: Path,
    env: Mapping[str, str] | None,
    supervised_s: float | None,
    keep: Sequence[int],
    folder: str | None,
) -> ServerProcess:
    try:
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(
            os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
        ) as log:
            log_start = log.tell()
            process = subprocess.Popen(  # noqa: S603 - the launcher's own command, and no shell
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=folder,
                start_new_session=True,
                pass_fds=keep,
            )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started: {error}") from error
    return ServerProcess(process, log_file, log_start, supervised_s)


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
