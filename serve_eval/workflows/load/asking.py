"""Ask the passes of a check over loads, each in a run folder of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace

from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.evaluation.passes import PassSettings, ask_pass
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Endpoint, Failure, Plan
from serve_eval.storage.reports.report_file import has_report, read_report
from serve_eval.storage.sessions import lacks_loads
from serve_eval.workflows.load.points import LoadPass

AGAIN = "_again"
"""Ending of the folder with the repeat at the end."""


def shuffle_loads(loads: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the loads in a random order, the same for the same seed."""
    order = list(loads)
    random.Random(f"{seed}:loads").shuffle(order)
    return tuple(order)


@dataclass(slots=True, kw_only=True)
class SurfaceSession:
    """The passes of a check, which are asked as they are needed.

    `launching` is entered in `stack` for the first pass that is not finished. `gave_up` has the
    reason by pass, and `asked` the passes of this result.
    """

    plan: Plan
    prepared: Sequence[PreparedTask]
    shared: PassSettings
    loads: tuple[int, ...]
    seed: int
    launching: Callable[[], AbstractAsyncContextManager[Endpoint]]
    stack: AsyncExitStack
    endpoint: Endpoint | None = None
    gave_up: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, ...]:
        """The loads in the order of asking."""
        return shuffle_loads(self.loads, self.seed)

    def is_done(self, name: str) -> bool:
        """Return True if a pass is finished."""
        return has_report(self.shared.out_dir / name)

    def find(self, name: str) -> LoadPass | None:
        """Return a pass if it is finished."""
        if not self.is_done(name):
            return None
        folder = self.shared.out_dir / name
        return LoadPass(folder=folder, report=read_report(folder))

    async def ask(self, name: str, load: int, task: str | None = None) -> None:
        """Ask a pass at a load, unless it is finished: all tasks, or one of them.

        If the pass is given up, the endpoint must answer a probe; then the reason is kept. Raises
        ServeEvalError otherwise.
        """
        self.asked.append(name)
        if self.is_done(name):
            return
        if self.endpoint is None:
            self.endpoint = await self.stack.enter_async_context(self.launching())
        plan = replace(self.plan, limits=replace(self.plan.limits, concurrency=load))
        chosen = [p for p in self.prepared if task in (None, p.task.name)]
        if task is not None:
            specs = zip(plan.tasks, self.prepared, strict=True)
            plan = replace(plan, tasks=tuple(s for s, p in specs if p.task.name == task))
        try:
            await ask_pass(name, plan, chosen, self.endpoint, self.shared, self.seed)
        except EndpointError as error:
            if not await self._answers_probe(self.endpoint):
                raise
            self.gave_up[name] = str(error)
            self.shared.notify(f"{name}: given up: {error}")

    async def _answers_probe(self, endpoint: Endpoint) -> bool:
        async with connect(self.plan, endpoint, self.shared.environ) as client:
            chat = all(p.chat for p in self.prepared)
            return not isinstance(await send_probe(client, ping(chat)), Failure)

    def count_requests(self) -> int:
        """Return the number of prompts asked over all passes of this result."""
        found = [one for name in dict.fromkeys(self.asked) if (one := self.find(name))]
        return sum(task.result.planned for one in found for task in one.report.tasks)


def describe_shortfalls(passes: Mapping[int, LoadPass]) -> list[str]:
    """Return a line for each load whose number in flight was never reached."""
    lines = []
    for load, one in passes.items():
        most = max((part.max_in_flight for part in one.report.loads), default=load)
        if most < load and not lacks_loads(one.folder):
            lines.append(
                f"load {load}: at most {most} requests were in flight, so that {load} was not"
                " tested: ask more prompts with --limit"
            )
    return lines
