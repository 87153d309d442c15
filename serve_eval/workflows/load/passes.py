"""Ask the passes of a check over loads, and describe each task at each load."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.evaluation.passes import PassSettings, ask_pass
from serve_eval.evidence.answer_pairs import TaskAnswers, another_answer, read_task, texts
from serve_eval.evidence.answer_texts import find_first_divergences, part
from serve_eval.evidence.score_pairs import list_groups
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import MEAN, Endpoint, Failure, FirstDivergences, LoadPoint, Plan, Report
from serve_eval.stats.bounds import bounds
from serve_eval.stats.clusters import cluster_keys, effective_size, number_keys
from serve_eval.stats.intervals import wilson
from serve_eval.stats.pairs import pair
from serve_eval.stats.score_bounds import score_bounds
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.sessions import lacks_loads
from serve_eval.workflows.load.judging import Changes, LoadData, count_changes, weigh_changes

INTERVAL_ALPHA = 0.05
"""One minus the confidence of the interval of a value, and of the loss that is excluded."""


@freeze
class LoadPass:
    """A finished pass: its folder and report."""

    folder: Path
    report: Report

    def read_answers(self, task: str) -> TaskAnswers:
        """Return the answers to one task. Raises RunFolderError.

        A prompt whose first answer was lost counts as failed: at that load, its request failed.
        """
        return read_task(self.folder, self.report, task).without_doubted()


def describe_points(
    data: LoadData, passes: dict[int, LoadPass], again: LoadPass | None, task: str
) -> Sequence[LoadPoint]:
    """Return a point for each load, against the lowest one that was finished."""
    lowest = next(load for load in data.loads if load in data.answers)
    planned = data.answers[lowest].planned
    found = []
    for load in data.loads:
        if load not in data.answers:
            found.append(
                LoadPoint(
                    load=load,
                    outcome="gave up",
                    scored=0,
                    failed=planned,
                    value=None,
                    interval=None,
                )
            )
            continue
        timed = again if again is not None and load == data.first else passes[load]
        found.append(_describe_point(data, load, lowest, timed, task))
    return found


def _describe_point(
    data: LoadData, load: int, lowest: int, timed: LoadPass, task: str
) -> LoadPoint:
    base, here = data.answers[lowest], data.answers[load]
    lines, before = here.lines[0], base.lines[0]
    metric, result = here.task.result.metric, here.task.result
    share = (metric.lo, metric.hi, result.aggregation) == (0.0, 1.0, MEAN.name)
    changes = count_changes(base, here)
    paired = sum(prompt in before for prompt in lines)
    failures = weigh_changes(before.keys() - lines.keys(), lines.keys() - before.keys(), base, here)
    changed = [p for p, line in before.items() if p in lines and another_answer(line, lines[p])]
    wall_s = math.fsum(one.wall_s for one in timed.report.loads)
    answers = here if timed.report.loads == () else timed.read_answers(task)
    right = math.fsum(line.value for line in answers.lines[0].values())
    is_right = share and metric.higher_is_better
    lower = _bound_change(base, here, changes) if share and paired else None
    return LoadPoint(
        load=load,
        outcome="lowest" if load == lowest else "holds",
        scored=len(lines),
        failed=here.planned - len(lines),
        value=result.value,
        interval=_find_interval(here, metric.scale) if share and lines else None,
        paired=paired,
        lost=changes.down,
        won=changes.up,
        p=changes.p,
        excluded=None if lower is None else round(-lower * metric.scale, 3),
        failed_more=failures.down,
        failed_less=failures.up,
        p_failures=failures.p,
        in_flight=max((one.max_in_flight for one in timed.report.loads), default=0),
        ttft_s={k: v for k, v in answers.task.traffic.ttft_s.items() if k in ("p50", "p99")},
        right_per_s=right / wall_s if is_right and wall_s > 0 else None,
        changed=len(changed),
        places=_find_places(base, here, changed) if changed else None,
    )


def _bound_change(base: TaskAnswers, here: TaskAnswers, changes: Changes) -> float:
    """Return the lower bound of the change of a share, by groups if prompts share some."""
    lines, before = here.lines[0], base.lines[0]
    both = [prompt for prompt in before if prompt in lines]
    keys = cluster_keys(list_groups(both, base, here))
    if keys is None:
        return score_bounds(changes.down, changes.up, len(both), INTERVAL_ALPHA)[0]
    pairs = pair(
        [before[prompt].value for prompt in both],
        [lines[prompt].value for prompt in both],
        lo=0.0,
        hi=1.0,
        higher_is_better=here.task.result.metric.higher_is_better,
        clusters=keys,
    )
    return bounds(pairs, INTERVAL_ALPHA).lower


def _find_places(
    base: TaskAnswers, here: TaskAnswers, changed: Sequence[str]
) -> FirstDivergences | None:
    """Return where the changed answers part, by words: answers come without their tokens."""
    before, after = texts(base, changed), texts(here, changed)
    parted = [part(before.get(prompt, ""), after.get(prompt, "")) for prompt in changed]
    return find_first_divergences([one for one in parted if one is not None])


def _find_interval(here: TaskAnswers, scale: float) -> tuple[float, float]:
    """Return the interval of the value; prompts that share groups are effectively fewer."""
    lines = here.lines[0]
    values = [line.value for line in lines.values()]
    keys = cluster_keys(list_groups(lines, here))
    size = float(len(values)) if keys is None else effective_size(values, number_keys(keys))
    mean = math.fsum(values) / len(values)
    low, high = wilson(size * mean, size, INTERVAL_ALPHA)
    return scale * low, scale * high


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
