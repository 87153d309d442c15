"""What launchers share: one server as a process of its own group, watched, and ended on every path."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from serve_eval.errors import LaunchError

STOP_S = 10.0
"""Time between SIGTERM and SIGKILL."""
POLL_S = 0.05
LOG_LINES = 20


class Server:
    """A started server process with its log file."""

    def __init__(self, process: asyncio.subprocess.Process, log_file: Path, name: str) -> None:
        self.process, self.log_file, self.name = process, log_file, name

    def check_alive(self) -> None:
        """Raises LaunchError with the last lines of the log when the process has ended."""
        if self.process.returncode is not None:
            raise LaunchError(
                f"{self.name} ended with exit code {self.process.returncode}. Its last words:\n{self.last_words()}",
                hint=f"The whole log: {self.log_file}",
            )

    def last_words(self) -> str:
        """The last lines of the log."""
        text = self.log_file.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES:]) or "(nothing was logged)"

    async def wait_for_file(self, path: Path, timeout_s: float) -> str:
        """The content of a file that the server writes when it is ready. Raises LaunchError."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            self.check_alive()
            if time.monotonic() > deadline:
                raise LaunchError(f"{self.name} was not ready after {timeout_s:g} s:\n{self.last_words()}")
            await asyncio.sleep(POLL_S)
        return path.read_text(encoding="utf-8")

    async def wait_until_healthy(self, url: str, timeout_s: float) -> None:
        """Waits until GET `url` answers 200. Raises LaunchError when the server ends before that or takes too long."""
        import httpx

        deadline = time.monotonic() + timeout_s
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            while True:
                self.check_alive()
                with suppress(httpx.HTTPError):
                    if (await client.get(url)).status_code == 200:
                        return
                if time.monotonic() > deadline:
                    raise LaunchError(f"{self.name} was not healthy after {timeout_s:g} s:\n{self.last_words()}")
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def server_process(
    command: Sequence[str], *, name: str, log_file: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """Starts `command` in a process group of its own, with its output in `log_file` and a pipe as standard input.

    The pipe closes when this process ends in any way, SIGKILL included, which a server of ours takes as its own end.
    On leaving, the group gets SIGTERM and after STOP_S SIGKILL. Raises LaunchError when the command cannot be started.
    """
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
        )
    except OSError as error:
        raise LaunchError(f"{name} cannot be started: {error}") from error
    finally:
        os.close(log)
    try:
        yield Server(process, log_file, name)
    finally:
        await asyncio.shield(_stop(process))


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
            return
