"""Ranks of real MPI, started as in TensorRT-LLM: mpi4py's pool spawns them from a thread.

If that fails, the thread ends with a traceback and the server waits for its ranks without a limit,
as the real one does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

ALONE_S = 600.0
"""Seconds after which a rank ends on its own: it does not notice that its server is gone."""


class Ranks:
    """As many processes as the server has GPUs, also with tp 1."""

    def __init__(self, count: int) -> None:
        from mpi4py import MPI
        from mpi4py.futures import MPIPoolExecutor

        from serve_eval.launchers._standin.serving import log

        log(
            "rank 0 using MpiPoolSession to spawn MPI processes"
            f" ({MPI.Get_library_version().split(',')[0]})"
        )
        with socket.create_server(("127.0.0.1", 0), backlog=count) as door:
            self.pool = MPIPoolExecutor(max_workers=count, path=sys.path)
            for _ in range(count):
                self.pool.submit(attend, door.getsockname()[1])
            self.lines = [door.accept()[0] for _ in range(count)]
        for line in self.lines:
            about = json.loads(line.makefile().readline())
            log(f"MPI rank {about['rank']} of {about['size']}: process [{about['pid']}]")

    @asynccontextmanager
    async def until_the_end_of(
        self, meanwhile: AbstractAsyncContextManager[None] | None
    ) -> AsyncIterator[None]:
        """Run the block within `meanwhile`, then end the ranks."""
        async with meanwhile or nullcontext():
            yield
        for line in self.lines:
            line.sendall(b"end")
        self.pool.shutdown()


def attend(port: int) -> None:
    """Run a rank until it is asked to end."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    with socket.create_connection(("127.0.0.1", port)) as line:
        about = {
            "rank": MPI.COMM_WORLD.Get_rank(),
            "size": MPI.COMM_WORLD.Get_size(),
            "pid": os.getpid(),
        }
        line.sendall(json.dumps(about).encode() + b"\n")
        if line.recv(3) != b"end":
            time.sleep(ALONE_S)
