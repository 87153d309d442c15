"""Hold one server for as long as the next configuration can use it, and count what it costs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.endpoint.launch import Launching, job_size
from serve_eval.evaluation.shared_server import SharedServer, server_key
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Endpoint, Plan
from serve_eval.storage.file_names import SERVERS


def count_gpus(plan: Plan) -> int | None:
    """Return the GPUs that the servers of a plan use; None if the launcher does not know."""
    try:
        size = job_size(plan)
    except ServeEvalError:
        return None
    return size.nodes * size.gpus_per_node or None


class HeldServer:
    """The server of the latest configuration, with the starts and GPU seconds of all so far.

    `gpus_known` is False once a server started of which the launcher does not know the GPUs. A
    running endpoint is no start.
    """

    def __init__(
        self, folder: Path, launching: Launching, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._launching, self._clock = folder, launching, clock
        self._server: SharedServer | None = None
        self.key: str | None = None
        self.starts, self.gpus_known = 0, True
        self._ended_gpu_s, self._gpus, self._began_s = 0.0, 0, 0.0

    @property
    def gpu_s(self) -> float:
        """The GPU seconds of all servers so far, also of the one that is running."""
        return self._ended_gpu_s + self._gpus * (self._clock() - self._began_s)

    async def __aenter__(self) -> HeldServer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop the server if one is running."""
        server, self._server, self.key = self._server, None, None
        if server is not None:
            await server.stop()

    async def take(self, plan: Plan) -> SharedServer:
        """Return the server for a plan, which starts when the first request is sent."""
        key = server_key(plan)
        if self._server is None or key != self.key:
            await self.stop()
            self._server, self.key = SharedServer([plan], self._new_folder(), self._launch), key
        return self._server

    def _new_folder(self) -> Path:
        number = 1
        while (folder := self._folder / SERVERS / f"{number:02d}").exists():
            number += 1
        return folder

    @asynccontextmanager
    async def _launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        if plan.launcher.name == "external":
            async with self._launching(plan, prepared, folder) as endpoint:
                yield endpoint
            return
        gpus = count_gpus(plan)
        self.starts += 1
        self._gpus, self._began_s = gpus or 0, self._clock()
        self.gpus_known = self.gpus_known and gpus is not None
        try:
            async with self._launching(plan, prepared, folder) as endpoint:
                yield endpoint
        finally:
            self._ended_gpu_s, self._gpus = self.gpu_s, 0
