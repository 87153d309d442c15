"""A server that adds two numbers, as an example of a launcher in a package."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from serve_eval.errors import LaunchError
from serve_eval.schema import Endpoint, LaunchContext, ServerInfo

READY_S = 30.0
"""Maximum seconds that the server may take to start."""


def commands(context: LaunchContext, *, wrong_by: int = 0) -> list[list[str]]:
    """Return the command lines that `launch` starts, for the dry run."""
    return [
        [
            sys.executable,
            "-P",
            "-m",
            "serve_eval_example._server",
            str(_port_file(context)),
            str(wrong_by),
        ]
    ]


@asynccontextmanager
async def launch(context: LaunchContext, *, wrong_by: int = 0) -> AsyncIterator[Endpoint]:
    """Start the server on a free port of 127.0.0.1, yield its endpoint, and stop it in any case.

    `wrong_by` is added to every sum. Raises LaunchError if the server does not start.
    """
    context.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready = _port_file(context)
    ready.unlink(missing_ok=True)
    [command] = commands(context, wrong_by=wrong_by)
    with (context.log_dir / "calculator.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(READY_S):
            while not ready.exists():
                if server.returncode is not None:
                    raise LaunchError(
                        f"the calculator ended at once: see {context.log_dir}/calculator.log"
                    )
                await asyncio.sleep(0.02)
        told = ServerInfo(
            launcher="calculator", pid=server.pid, log_file=str(context.log_dir / "calculator.log")
        )
        yield Endpoint(
            base_url=f"http://127.0.0.1:{ready.read_text()}/v1", model=context.model, info=told
        )
    except TimeoutError as error:
        raise LaunchError(f"the calculator did not start within {READY_S:g} s") from error
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


def _port_file(context: LaunchContext) -> Path:
    return context.log_dir / "calculator.port"
