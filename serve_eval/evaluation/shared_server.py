"""Share one server between runs that need the same one, while its task keeps it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from serve_eval.errors import EndpointError, LaunchError, ServeEvalError
from serve_eval.evaluation.launch import Launching, launch
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.engine_counters import Companions
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.schema import Endpoint, Plan, RunError

PROBE_S = 2.0
"""Seconds that a server may take to accept a connection. If it takes longer, the run finds out what
is wrong."""


def server_key(plan: Plan) -> str:
    """Return a text that is the same for two plans which can use the same server."""
    return canonical((plan.model, plan.launcher.name, plan.launcher.options))


class SharedServer:
    """A server that starts for the first run that sends requests, and stops with the block.

    If the server cannot be started, every further run gets the same LaunchError. It is restarted
    for the next run if it has ended, or if a run failed after an earlier one succeeded. A server
    with which no run has succeeded keeps running: the requests are probably the cause, and a start
    may take long. `companions` joins the runs that use it.
    """

    def __init__(
        self, plans: Sequence[Plan], folder: Path, launching: Launching | None = None
    ) -> None:
        self._plans, self._folder = plans, folder
        self.companions = Companions()
        self._launching = launching or launch
        self._endpoint: Endpoint | None = None
        self._refused: LaunchError | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._worked = False

    async def __aenter__(self) -> SharedServer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop the server if it is running."""
        self._endpoint, self._worked = None, False
        if (keeper := self._keeper) is not None:
            self._keeper, over = None, keeper.done()
            self._leave.set()
            try:
                await keeper
            except LaunchError:
                if not over:  # Otherwise the run that used it has received the error.
                    raise

    async def note_end(self, error: RunError | None) -> None:
        """Record how a run ended, and stop the server if it needs a restart."""
        if error is None:
            self._worked = self._endpoint is not None
        elif error.kind == EndpointError.__name__ and self._worked:
            await self.stop()

    @asynccontextmanager
    async def launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        """Yield the endpoint, started if necessary. `evaluate` takes this as its `launching`."""
        if self._refused is not None:
            raise self._refused
        ended = self._keeper is not None and self._keeper.done()
        if ended or (self._endpoint is not None and await _is_gone(self._endpoint.base_url)):
            await self.stop()
        if self._endpoint is None:
            self._endpoint = await self._start(plan, prepared)
        assert self._keeper is not None
        async with while_kept(self._keeper):
            yield self._endpoint

    async def _start(self, plan: Plan, prepared: Sequence[PreparedTask]) -> Endpoint:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if plan.launcher.name != "external":
            prepared = [*prepared, *await asyncio.to_thread(self._others, plan, prepared)]
        started: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        # An orchestrator's time limit follows the sample timeout, so use the longest of all runs.
        longest = max(one.limits.sample_timeout_s for one in self._plans)
        plan = replace(plan, limits=replace(plan.limits, sample_timeout_s=longest))
        self._leave = asyncio.Event()
        self._keeper = keeper = asyncio.create_task(
            self._keep(plan, prepared, started, self._leave)
        )
        try:
            both: set[asyncio.Future[Any]] = {started, keeper}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                await keeper
        except LaunchError as error:
            self._refused, self._keeper = error, None
            raise
        except BaseException:
            self._keeper = None
            keeper.cancel()
            await asyncio.wait({keeper})
            raise
        return started.result()

    async def _keep(
        self,
        plan: Plan,
        prepared: Sequence[PreparedTask],
        started: asyncio.Future[Endpoint],
        leave: asyncio.Event,
    ) -> None:
        """Start the server and wait, in a separate task.

        A launcher cancels the task that started it if its server ends. That must not be the task
        that continues with the next run.
        """
        async with self._launching(plan, prepared, self._folder) as endpoint:
            started.set_result(endpoint)
            await leave.wait()

    def _others(self, first: Plan, prepared: Sequence[PreparedTask]) -> list[PreparedTask]:
        """Return other runs' tasks with further prompts: a simulated model needs them all."""
        known = {(p.task.name, p.fingerprint["samples"]) for p in prepared}
        found: list[PreparedTask] = []
        for plan in self._plans:
            if plan == first:
                continue
            with suppress(ServeEvalError):  # That run reports the error.
                for p in prepare(plan):
                    if (key := (p.task.name, p.fingerprint["samples"])) not in known:
                        known.add(key)
                        found.append(p)
        return found


async def _is_gone(base_url: str) -> bool:
    """Return True if no server listens at the address any longer."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return False


@asynccontextmanager
async def while_kept(keeper: asyncio.Task[None]) -> AsyncIterator[None]:
    """Raise the keeper's error in the block as soon as the keeper fails."""
    task, over = asyncio.current_task(), False
    assert task is not None
    cancelling = task.cancelling()

    def note_end(_: object) -> None:
        if not over:
            task.cancel()

    keeper.add_done_callback(note_end)
    try:
        yield
    except asyncio.CancelledError:
        error = keeper.exception() if keeper.done() and not keeper.cancelled() else None
        if error is not None and task.uncancel() <= cancelling:
            raise error from None
        raise
    finally:
        over = True
        keeper.remove_done_callback(note_end)
