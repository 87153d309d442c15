"""Hold what one process of pytest shares between its tests: event loop, servers, folders, GPUs."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, chdir
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from serve_eval.pytest_plugin.asked import read_base
from serve_eval.pytest_plugin.endings import AccuracyNotMeasured
from serve_eval.pytest_plugin.options import PluginOptions

if TYPE_CHECKING:
    from serve_eval.evaluation.launch import Launching
    from serve_eval.evaluation.shared_server import SharedServer
    from serve_eval.plan.prepared_task import PreparedTask
    from serve_eval.pytest_plugin.compared import ComparedSides
    from serve_eval.schema import Comparison, Endpoint, Plan, Report, RunError

ELSEWHERE = ("external", "kubernetes", "slurm")
"""Launchers whose servers do not use the GPUs of this machine."""


def count_gpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of GPUs that servers may use here.

    Those are the ones in CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists. None: this machine
    has GPUs that it does not list. Raises PlanError if the variable is wrong.
    """
    from serve_eval.launchers._machine import local_gpus

    if (named := local_gpus.visible(environ)) is not None:
        return len(named)
    used = local_gpus.memory_used()
    if used is not None:
        return len(used)
    return None if local_gpus.any_here(used) else 0


def find_lack(needed: int) -> str | None:
    """Return why a test that needs this number of GPUs cannot run, or None if it can."""
    if needed < 1 or (there := count_gpus()) is None or there >= needed:
        return None
    return f"needs {needed} GPU{'s' * (needed > 1)}, and this machine has {there or 'none'}"


def count_needed(plan: Plan) -> int:
    """Return the GPUs of this machine that the launcher of a plan needs.

    Raises PlanError for options that cannot be launched.
    """
    from serve_eval.evaluation.launch import job_size

    return 0 if plan.launcher.name in ELSEWHERE else job_size(plan).gpus_per_node


def skip_without_room(plan: Plan) -> None:
    """Skip the test if there are fewer GPUs than the launcher of its plan needs."""
    __tracebackhide__ = True
    if (lack := find_lack(count_needed(plan))) is not None:
        pytest.skip(f"launcher {plan.launcher.name} {lack}")


@cache
def has_gpu(kind: str) -> bool:
    """Return True if a GPU here is of this kind: a part of its name, or sm90."""
    from serve_eval.launchers._machine import local_gpus

    lines = local_gpus.ask("--query-gpu=name,compute_cap", "--format=csv,noheader") or []
    for line in lines:
        name, _, capability = line.rpartition(",")
        architecture = f"sm{capability.strip().replace('.', '')}"
        if kind.lower() in name.lower() or kind.lower() == architecture:
            return True
    return False


T = TypeVar("T")
log = logging.getLogger("serve_eval")
CLOSING_S = 10.0
"""Time in which an interrupted evaluation closes its files and connections."""


class Workbench:
    """The event loop, the servers and the folders of one session of pytest."""

    def __init__(self, options: PluginOptions, scratch: Path) -> None:
        self.options = options
        self.folder = options.output or scratch
        self.servers = KeptServers(self.folder / "held", log.info)
        self._runner: asyncio.Runner | None = None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. What interrupts it cancels it, so that files are closed.

        That is Ctrl-C, or an exception that another plug-in raises in this thread.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        tasks: list[asyncio.Task[Any]] = []

        async def guard() -> T:
            tasks.extend(filter(None, [asyncio.current_task()]))
            return await main

        try:
            return self._runner.run(guard(), context=contextvars.copy_context())
        finally:
            if left := [task for task in tasks if not task.done()]:
                left[0].cancel()
                self._runner.get_loop().run_until_complete(asyncio.wait(left, timeout=CLOSING_S))

    def close(self) -> None:
        """End the servers and the event loop."""
        if (runner := self._runner) is not None:
            self._runner = None
            with runner:
                runner.run(self.servers.stop())

    def name_folder(self, test: str) -> Path:
        """Return a new run folder: one per test, in it one per time.

        A folder of an earlier session would be resumed without a request.
        """
        parts = [re.sub(r"[^\w.=+-]+", "-", part)[:120] for part in re.split(r"::|/", test)]
        stamp = datetime.now(UTC).strftime("%Y%m%d_%H%M%S")
        folder = self.folder.joinpath(*parts)
        taken = sum(one.name.startswith(stamp) for one in folder.glob("*"))
        return folder / (f"{stamp}_{taken + 1}" if taken else stamp)

    def evaluate(self, plan: Plan, folder: Path) -> Report:
        """Run a plan in a folder, with kept servers. Raises ServeEvalError.

        After an exception from outside, a kept server is not used again, since it may hang.
        """
        from serve_eval.errors import ServeEvalError
        from serve_eval.pytest_plugin.results import PASSED_ON

        try:
            return self.run(self._evaluate(plan, folder))
        except (ServeEvalError, *PASSED_ON):
            raise
        except BaseException:
            self.run(self.servers.drop(plan))
            raise

    def compare(
        self,
        sides: ComparedSides,
        folder: Path,
        *,
        show_flips: int | None,
        one_after_the_other: bool,
    ) -> Comparison:
        """Compare two sides in a folder, with servers of their own. Raises ServeEvalError.

        Those of earlier tests end first if a side needs GPUs, which they would hold.
        """
        from serve_eval.workflows.compare.compare import SHOW_FLIPS, compare

        async def ask() -> Comparison:
            if any(count_needed(one.plan) for one in (sides.a, sides.b) if one.folder is None):
                await self.servers.stop()
            return await compare(
                sides.a,
                sides.b,
                sides.rules,
                folder,
                show_flips=SHOW_FLIPS if show_flips is None else show_flips,
                one_after_the_other=one_after_the_other,
                strict=self.options.strict,
                notify=log.info,
            )

        return self.run(ask())

    def start_server(
        self,
        launcher: str | None = None,
        *,
        plan: Path | str | None = None,
        model: str | None = None,
        **options: object,
    ) -> Endpoint:
        """Start a server, or find it if a test has started it, and return its endpoint.

        The launcher is the given one, or that of a plan file; `options` are added to its own. The
        test is skipped if there are too few GPUs. Raises AccuracyNotMeasured if it does not start.
        """
        __tracebackhide__ = True
        from serve_eval.errors import ServeEvalError
        from serve_eval.plugins.scope import scope
        from serve_eval.pytest_plugin.results import describe_error

        try:
            with scope(), chdir(self.options.root):
                found = _read_launcher(launcher, plan, model, options)
                skip_without_room(found)
                return self.run(self.servers.start(found))
        except ServeEvalError as error:
            raise AccuracyNotMeasured(describe_error(error)) from None

    def find_endpoint(self, plan: Plan) -> Endpoint:
        """Return the endpoint of a plan: asked once if it runs already, else a kept server.

        Raises ServeEvalError for one that does not answer, does not start or cannot be kept.
        """
        from serve_eval.errors import PlanError
        from serve_eval.evaluation.launch import check_launcher
        from serve_eval.workflows.servers import UNHELD

        name = plan.launcher.name
        if name == "external":
            return self.run(ask_endpoint(plan))
        if name in UNHELD:
            raise PlanError(
                f"launcher {name}: {UNHELD[name]}, so serve_eval_endpoint cannot hold it",
                hint="Use the fixture serve_eval and its evaluate(), or give the address of a"
                " running endpoint as base_url.",
            )
        check_launcher(plan)
        return self.run(self.servers.start(plan))

    async def _evaluate(self, plan: Plan, folder: Path) -> Report:
        from serve_eval.errors import ServeEvalError
        from serve_eval.evaluation.evaluate import evaluate
        from serve_eval.schema import RunError

        try:
            report = await evaluate(
                plan, folder, launching=self.servers.choose_launching(plan), notify=log.info
            )
        except ServeEvalError as error:
            ending = RunError(
                kind=type(error).__name__,
                message=str(error),
                hint=error.hint,
                exit_code=error.exit_code,
            )
            await self.servers.note_end(plan, ending)
            raise
        await self.servers.note_end(plan, None)
        return report


def _read_launcher(
    launcher: str | None, plan: Path | str | None, model: str | None, options: dict[str, object]
) -> Plan:
    """Return a plan without tasks for a server that can be kept. Raises PlanError."""
    from serve_eval.errors import PlanError
    from serve_eval.plan.resolve import resolve_launcher
    from serve_eval.workflows.servers import check

    file = dict(read_base(None if plan is None else Path(plan)))
    given = file.get("launcher") if launcher is None else launcher
    if given is None:
        raise PlanError("no launcher: give its name, or a plan that has one")
    named = {"name": given} if isinstance(given, str) else dict(given)
    file["launcher"] = {**named, **options}
    found = resolve_launcher(file, {} if model is None else {"model": model}, {})
    check(found)
    return found


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
        from serve_eval.workflows.servers import UNHELD

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

        from serve_eval.evaluation.launch import launch
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


_WITHOUT_LIST = (404, 405)
"""Statuses of older orchestrators, which answer but do not list their models."""


async def ask_endpoint(plan: Plan) -> Endpoint:
    """Return the endpoint of a plan, with its model: the only one, or that of the reference.

    It is asked for its models once. If the plan names the model, it need not list any. Raises
    EndpointError if it does not answer.
    """
    from serve_eval.client.connection import connect
    from serve_eval.client.preflight import pick_model, refuse_listing
    from serve_eval.evaluation.launch import launch
    from serve_eval.schema import Failure

    async with (
        launch(plan, (), Path()) as endpoint,
        connect(plan, endpoint, os.environ) as client,
    ):
        served = await client.models()
        if not isinstance(served, Failure):
            picked = pick_model(served, plan.reference_model)
            return replace(endpoint, model=endpoint.model or picked)
        if plan.model is None or served.status not in _WITHOUT_LIST:
            await refuse_listing(client, served)
        return endpoint
