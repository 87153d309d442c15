"""One server for the runs of a suite that want the same one."""

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
from serve_eval.evaluation.endpoint.keeper import while_kept
from serve_eval.evaluation.endpoint.launch import Launching, launch
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.protocol.fingerprint import canonical
from serve_eval.schema import Endpoint, Plan, RunError, SuiteRun

PROBE_S = 2.0
"""How long a server may take to accept a connection before it is left to the run to find out what
is wrong."""


def groups(runs: Sequence[SuiteRun]) -> list[list[SuiteRun]]:
    """The runs by the server that they need, in the order of their first appearance. A running
    endpoint is one too, so that its runs follow each other.
    """
    found: dict[str, list[SuiteRun]] = {}
    for run in runs:
        plan = run.plan
        found.setdefault(
            canonical((plan.model, plan.launcher.name, plan.launcher.options)), []
        ).append(run)
    return list(found.values())


class SharedServer:
    """Starts the server when the first of the runs has something to ask, and stops it at the end of
    the block.

    A server that could not be started is not tried again: every further run gets the same
    LaunchError. For the next run, one is started anew that has ended, or that served a run and then
    failed one. A server that has only ever failed stays: the cause is probably in what is asked,
    and a start may take long.
    """

    def __init__(
        self, runs: Sequence[SuiteRun], folder: Path, launching: Launching | None = None
    ) -> None:
        self._plans, self._folder = [run.plan for run in runs], folder
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
        """Stops the server, if there is one."""
        self._endpoint, self._worked = None, False
        if (keeper := self._keeper) is not None:
            self._keeper, over = None, keeper.done()
            self._leave.set()
            try:
                await keeper
            except LaunchError:
                if not over:  # else the run that used it was told
                    raise

    async def note_end(self, error: RunError | None) -> None:
        """To be told how each run ended."""
        if error is None:
            self._worked = self._endpoint is not None
        elif error.kind == EndpointError.__name__ and self._worked:
            await self.stop()

    @asynccontextmanager
    async def launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        """The endpoint, started if need be: what `evaluate` takes as its own `launching`."""
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
        # An orchestrator's limit follows that of the samples: of the most patient run.
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
        """The server's whole life in a task of its own: a launcher whose server ends cancels the
        task that started it, and that must be none that goes on to the next run.
        """
        async with self._launching(plan, prepared, self._folder) as endpoint:
            started.set_result(endpoint)
            await leave.wait()

    def _others(self, first: Plan, prepared: Sequence[PreparedTask]) -> list[PreparedTask]:
        """The tasks of the other runs as far as they ask other prompts: a simulated model has to
        know them all.
        """
        known = {(p.task.name, p.fingerprint["samples"]) for p in prepared}
        found: list[PreparedTask] = []
        for plan in self._plans:
            if plan == first:
                continue
            with suppress(ServeEvalError):  # told by that run itself
                for p in prepare(plan):
                    if (key := (p.task.name, p.fingerprint["samples"])) not in known:
                        known.add(key)
                        found.append(p)
        return found


async def _is_gone(base_url: str) -> bool:
    """Return whether no server listens any more where a server was."""
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
