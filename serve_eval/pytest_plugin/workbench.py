"""Hold what one process of pytest shares between its tests: event loop, servers, folders."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from collections.abc import Coroutine
from contextlib import chdir
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from serve_eval.pytest_plugin.asked import read_base
from serve_eval.pytest_plugin.endings import AccuracyNotMeasured
from serve_eval.pytest_plugin.gpus import skip_without_room
from serve_eval.pytest_plugin.kept_servers import KeptServers
from serve_eval.pytest_plugin.options import PluginOptions

if TYPE_CHECKING:
    from serve_eval.pytest_plugin.compared import ComparedSides
    from serve_eval.schema import Comparison, Endpoint, Plan, Report

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
        from serve_eval.pytest_plugin.foreign import PASSED_ON

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
        from serve_eval.pytest_plugin.gpus import count_needed
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
        from serve_eval.evaluation.endpoint.launch import check_launcher
        from serve_eval.pytest_plugin.running_endpoint import ask_endpoint
        from serve_eval.workflows.servers.held_servers import UNHELD

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
    from serve_eval.workflows.servers.held_servers import check

    file = dict(read_base(None if plan is None else Path(plan)))
    given = file.get("launcher") if launcher is None else launcher
    if given is None:
        raise PlanError("no launcher: give its name, or a plan that has one")
    named = {"name": given} if isinstance(given, str) else dict(given)
    file["launcher"] = {**named, **options}
    found = resolve_launcher(file, {} if model is None else {"model": model}, {})
    check(found)
    return found
