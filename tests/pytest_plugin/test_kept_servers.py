"""Test which servers tests share, and what happens if there is no room for another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serve_eval.errors import NoRoomError
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.pytest_plugin.workbench import KeptServers
from serve_eval.schema import Endpoint, Limits, Plan, Spec


class Machine:
    """A machine with room for some servers. `running` are the names of those that run."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.running: list[str] = []
        self.started: list[str] = []

    @asynccontextmanager
    async def launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        name = str(plan.model)
        if len(self.running) == self.room:
            raise NoRoomError("all GPUs are in use")
        self.running.append(name)
        self.started.append(name)
        try:
            yield Endpoint(base_url=f"http://{name}/v1")
        finally:
            self.running.remove(name)


def _plan(model: str, timeout_s: float = 60.0) -> Plan:
    limits = Limits(sample_timeout_s=timeout_s)
    return Plan(model=model, launcher=Spec(name="embedded"), tasks=(), limits=limits)


def _run(tmp_path: Path, room: int, plans: Sequence[Plan]) -> Machine:
    machine = Machine(room)

    async def main() -> None:
        servers = KeptServers(tmp_path, lambda line: None, machine.launch)
        try:
            for plan in plans:
                endpoint = await servers.start(plan)
                assert endpoint.base_url == f"http://{plan.model}/v1"
                assert plan.model in machine.running
        finally:
            await servers.stop()

    try:
        asyncio.run(main())
    finally:
        assert machine.running == []
    return machine


def test_the_same_server_is_started_once_and_ends_with_the_session(tmp_path: Path) -> None:
    machine = _run(tmp_path, 9, [_plan("a"), _plan("b"), _plan("a"), _plan("a", 90.0)])
    assert machine.started == ["a", "b", "a"]  # an orchestrator follows the time limit


def test_idle_servers_make_room(tmp_path: Path) -> None:
    machine = _run(tmp_path, 1, [_plan("a"), _plan("b"), _plan("a")])
    assert machine.started == ["a", "b", "a"]


def test_a_server_without_room_on_an_idle_machine_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoRoomError):
        _run(tmp_path, 0, [_plan("a")])


def test_an_endpoint_elsewhere_or_for_one_run_is_not_kept(tmp_path: Path) -> None:
    servers = KeptServers(tmp_path, lambda line: None)
    for name in ("external", "simulated"):
        assert servers.choose_launching(Plan(model="m", launcher=Spec(name=name), tasks=())) is None
    assert servers.choose_launching(_plan("a")) is not None
