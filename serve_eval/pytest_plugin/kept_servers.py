"""Keep launched servers for the tests that ask for the same, until the session of pytest ends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.evaluation.endpoint.launch import Launching
    from serve_eval.evaluation.shared_server import SharedServer
    from serve_eval.plan.prepared_task import PreparedTask
    from serve_eval.schema import Endpoint, Plan, RunError

Key = tuple[str, float]


class KeptServers:
    """The servers of one process of pytest; workers of pytest-xdist have their own.

    Their launchers find free ports, and lock the GPUs that they use against each other. If there is
    no room for a server, the others are stopped first, since no test is using them.
    """

    def __init__(
        self, folder: Path, notify: Callable[[str], None], launching: Launching | None = None
    ) -> None:
        self._folder, self._notify, self._launching = folder, notify, launching
        self._servers: dict[Key, SharedServer] = {}
        self._started = 0

    def choose_launching(self, plan: Plan) -> Launching | None:
        """Return what launches the endpoint of a plan: None for one that no server can be kept of.

        Such an endpoint runs elsewhere, or knows the answers to the questions of one run only.
        """
        from serve_eval.workflows.servers.held_servers import UNHELD

        return None if plan.launcher.name in UNHELD else self.launch

    async def start(self, plan: Plan) -> Endpoint:
        """Start the server of a plan if it does not run, and return its endpoint."""
        async with self.launch(plan, (), self._folder) as endpoint:
            return endpoint

    @asynccontextmanager
    async def launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        """Yield the endpoint of a plan. `evaluate` takes this as its `launching`."""
        from serve_eval.errors import NoRoomError

        async with AsyncExitStack() as stack:
            try:
                server = self._find(plan).launch(plan, prepared, folder)
                endpoint = await stack.enter_async_context(server)
            except NoRoomError:
                others = len(self._servers) > 1
                await self.stop()
                if not others:
                    raise
                self._notify("no room for another server: stopped those of earlier tests")
                server = self._find(plan).launch(plan, prepared, folder)
                endpoint = await stack.enter_async_context(server)
            yield endpoint

    async def note_end(self, plan: Plan, error: RunError | None) -> None:
        """Record how a run ended, so that a server that failed is restarted for the next test."""
        if (server := self._servers.get(_key_of(plan))) is not None:
            await server.note_end(error)

    async def drop(self, plan: Plan) -> None:
        """Stop the server of a plan, so that the next test starts another one."""
        if (server := self._servers.pop(_key_of(plan), None)) is not None:
            await server.stop()

    async def stop(self) -> None:
        """Stop all servers, even if one of them reports an error."""
        servers, self._servers = self._servers, {}
        async with AsyncExitStack() as stack:
            for server in servers.values():
                stack.push_async_callback(server.stop)

    def _find(self, plan: Plan) -> SharedServer:
        from functools import partial

        from serve_eval.evaluation.endpoint.launch import launch
        from serve_eval.evaluation.shared_server import SharedServer

        key = _key_of(plan)
        if key not in self._servers:
            self._started += 1
            folder = self._folder / f"{os.getpid()}-{self._started}-{plan.launcher.name}"
            launching = self._launching or partial(launch, notify=self._notify)
            self._servers[key] = SharedServer((plan,), folder, launching)
        return self._servers[key]


def _key_of(plan: Plan) -> Key:
    """Return what two plans must share to use the same server.

    An orchestrator follows the time limit of a sample, so that belongs to it.
    """
    from serve_eval.evaluation.shared_server import server_key

    return server_key(plan), plan.limits.sample_timeout_s
