"""The launcher `simulated` without a process of its own, whose start costs more than most tests."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

from serve_eval.launchers._process import server_process
from serve_eval.launchers._simulated.__main__ import parse
from serve_eval.launchers._simulated.simulator import serve


@asynccontextmanager
async def server_here(command, *, ready_file, log_file):
    """Replace `own_server` without a process.

    The simulator of a command line runs in the event loop of the caller.
    """
    if "--crash-after" in command:  # this option ends the process
        async with server_process.own_server(
            command, ready_file=ready_file, log_file=log_file
        ) as found:
            yield found
        return
    config, _, _ = parse(command[command.index("-m") + 2 :])
    async with serve(config) as url:
        log_file.touch(mode=0o600)
        log_file.write_text(f"simulated endpoint at {url}\n")
        yield url, SimpleNamespace(pid=0)
