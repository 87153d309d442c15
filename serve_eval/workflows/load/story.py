"""Measure accuracy over the number of requests in flight, and name the loads that break it.

The same prompts are asked at each load, in one random order. The loads also have a random order,
and the one asked first is asked again at the end. OUT/<load> and OUT/<load>_again are ordinary run
folders, OUT/load_plan.json fixes what is asked before the first request, OUT/order.json has the
seed of both orders, and OUT/load.json is the result. The same command resumes.

The lowest and the highest load are compared first. Only if they differ is a load between them
asked, at their geometric mean, and then one between the two that still differ. Each is compared
with both ends: it is broken if it is worse than the sound end, and sound if it is better than the
broken end. If it is neither, it and both ends are asked again, so that each side of a comparison
always has as many answers to a prompt as the other. This is right if the fault begins at one load
and stays; a load that is broken alone lies outside the bracket.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.launch import launch
from serve_eval.evaluation.passes import (
    PassSettings,
    check_same_passes,
    prepare_passes,
    settle_order,
)
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.frozen import freeze
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import LoadBracket, LoadStep, LoadSurface, LoadTask, Plan, Progress
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.story_files import LOAD
from serve_eval.verdicts.exit_code import went_through
from serve_eval.workflows.load.judging import ALPHA, LoadData, find_exit_code, judge_tasks
from serve_eval.workflows.load.passes import (
    AGAIN,
    LoadPass,
    SurfaceSession,
    describe_points,
    describe_shortfalls,
)

LOADS = (1, 4, 16, 64, 256)
"""Default numbers of requests in flight."""
LIMIT = 200
"""Least default number of prompts per task; at least twice the highest load is asked."""
HIGHEST = 100_000
"""Highest load that is accepted."""


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a folder and its loads, asked all or by bisection."""

    plan: Plan
    loads: tuple[int, ...]
    bisect: bool


def check_loads(loads: Sequence[int]) -> tuple[int, ...]:
    """Return the loads in ascending order. Raises PlanError for fewer than two, or invalid ones."""
    found = tuple(sorted(set(loads)))
    if len(found) < 2 or found[0] < 1 or found[-1] > HIGHEST:
        raise PlanError(
            f"--concurrency: expected two or more numbers from 1 to {HIGHEST}",
            hint="Such as --concurrency 1,4,16,64,256.",
        )
    return found


@with_scope
async def measure_load(
    plan: Plan,
    out_dir: Path,
    loads: Sequence[int] = LOADS,
    *,
    bisect: bool = False,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> LoadSurface:
    """Ask what is left to ask, judge all loads, and write load.json.

    With `bisect`, only the lowest and the highest load are compared, and the loads between them
    are asked until the first broken one is known. Raises ServeEvalError for what stops a run.
    """
    clock, loads = Stopwatch(), check_loads(loads)
    loads = (loads[0], loads[-1]) if bisect else loads
    limits = replace(plan.limits, concurrency=loads[0], max_error_rate=1.0)
    plan, prepared = await prepare_passes(
        replace(plan, limits=limits),
        out_dir,
        out_dir / str(loads[0]),
        environ,
        max(LIMIT, 2 * loads[-1]),
    )
    shared = PassSettings(
        command=LOAD.command, out_dir=out_dir, progress=progress, environ=environ, notify=notify
    )
    with run_folder.hold(out_dir, LOAD.plan, "such checks"):
        _bind(out_dir, LoadPlan(plan=plan, loads=loads, bisect=bisect))
        LOAD.drop(out_dir)
        logs = out_dir / SERVERS
        logs.mkdir(mode=0o700, exist_ok=True)
        async with AsyncExitStack() as stack:
            session = SurfaceSession(
                plan=plan,
                prepared=prepared,
                shared=shared,
                loads=loads,
                seed=settle_order(out_dir, plan, notify),
                launching=lambda: launch(plan, prepared, logs, notify=notify),
                stack=stack,
            )
            found = await (_bisect(session) if bisect else _ask_all(session))
        found = replace(found, started_at=clock.started_at, wall_s=clock.wall_s)
        LOAD.write(out_dir, found)
    return found


def _bind(out_dir: Path, asked: LoadPlan) -> None:
    """Record what is asked. Raises RunFolderError if the folder has answers to something else."""
    saved = LOAD.find_plan(out_dir, LoadPlan)
    if saved is not None and run_folder.has_answers_below(out_dir):
        check_same_passes(out_dir, saved.plan, asked.plan, ("stream", "order"))
        if (saved.loads, saved.bisect) != (asked.loads, asked.bisect):
            how = " by bisection" if saved.bisect else ""
            raise RunFolderError(
                f"{out_dir} holds the loads {', '.join(map(str, saved.loads))}{how}",
                hint="Use another folder with -o.",
            )
    LOAD.write_plan(out_dir, asked)


async def _ask_all(session: SurfaceSession) -> LoadSurface:
    """Ask every load, and the first one again."""
    for load in session.order:
        await session.ask(str(load), load)
    tasks, warnings = await _judge_loads(session)
    return _surface(session, tasks, None, warnings)


async def _bisect(session: SurfaceSession) -> LoadSurface:
    """Compare the ends, and search between them for the strongest difference."""
    for load in session.order:
        await session.ask(str(load), load)
    tasks, warnings = _judge(session, session.order[0], None)
    broken = [task for task in tasks if task.broken]
    if not broken:
        return _surface(session, tasks, None, warnings)
    strongest = min(broken, key=lambda task: min(point.p for point in task.points))
    point = strongest.points[-1]
    bracket = await bisect_loads(session, strongest.task, rises=point.won > point.lost)
    tasks, warnings = await _judge_loads(session)
    return _surface(session, tasks, bracket, warnings)


async def _judge_loads(session: SurfaceSession) -> tuple[tuple[LoadTask, ...], list[str]]:
    """Ask the first finished load again, and judge."""
    first = next((load for load in session.order if session.is_done(str(load))), None)
    again = None
    if first is not None:
        await session.ask(f"{first}{AGAIN}", first)
        again = session.find(f"{first}{AGAIN}")
    return _judge(session, first, again)


def _judge(
    session: SurfaceSession, first: int | None, again: LoadPass | None
) -> tuple[tuple[LoadTask, ...], list[str]]:
    """Judge the finished passes."""
    passes = {load: one for load in session.loads if (one := session.find(str(load))) is not None}
    warnings = [f"load {name}: given up: {why}" for name, why in session.gave_up.items()]
    if not passes or first is None:
        raise RunFolderError(
            f"no load could be asked to the end: {'; '.join(session.gave_up.values())}"
        )
    points, data = {}, {}
    for task in (p.task.name for p in session.prepared):
        data[task] = LoadData(
            loads=session.loads,
            answers={load: one.read_answers(task) for load, one in passes.items()},
            first=first,
            again=None if again is None else again.read_answers(task),
        )
        points[task] = describe_points(data[task], passes, again, task)
    return judge_tasks(data, points), [*warnings, *describe_shortfalls(passes)]


def _surface(
    session: SurfaceSession,
    tasks: tuple[LoadTask, ...],
    bracket: LoadBracket | None,
    warnings: Sequence[str],
) -> LoadSurface:
    lowest = session.find(str(next(p.load for p in tasks[0].points if p.outcome != "gave up")))
    assert lowest is not None
    code, rehearsal = find_exit_code(tasks), lowest.report.rehearsal
    return LoadSurface(
        schema_version=LOAD.version,
        rehearsal=rehearsal,
        model=session.plan.model,
        base_url=lowest.report.endpoint.base_url,
        alpha=ALPHA,
        order=session.order,
        seed=session.seed,
        tasks=tasks,
        bracket=bracket if any(task.broken for task in tasks) else None,
        requests=session.count_requests(),
        exit_code=went_through(code) if rehearsal else code,
        started_at="",
        wall_s=0.0,
        warnings=tuple(warnings),
    )


LEVEL = 0.05
"""Chance that a bracket is wrong because one of its steps is."""
ASKINGS = 3
"""Times that a load is asked before it stays undecided."""


def halve(low: int, high: int) -> int | None:
    """Return the load between two others at which to go on; None if there is none."""
    if high - low < 2:
        return None
    return min(high - 1, max(low + 1, round(math.sqrt(low * high))))


@cache
def count_halvings(low: int, high: int) -> int:
    """Return the largest number of loads that a bisection between two loads asks."""
    middle = halve(low, high)
    if middle is None:
        return 0
    return 1 + max(count_halvings(low, middle), count_halvings(middle, high))


async def bisect_loads(session: SurfaceSession, task: str, *, rises: bool) -> LoadBracket:
    """Return the bracket of the loads between which the answers to a task break.

    With `rises`, the higher end is the sound one.
    """
    low, high = session.loads[0], session.loads[-1]
    search = _Search(
        session=session,
        task=task,
        good=high if rises else low,
        bad=low if rises else high,
        alpha=LEVEL / max(1, ASKINGS * count_halvings(low, high)),
    )
    good, bad, steps, undecided = search.good, search.bad, list[LoadStep](), None
    while (middle := halve(min(good, bad), max(good, bad))) is not None:
        step = await search.decide(middle)
        steps.append(step)
        if step.finding == "undecided":
            undecided = middle
            break
        good, bad = (middle, bad) if step.finding == "sound" else (good, middle)
    return LoadBracket(
        task=task, good=good, bad=bad, level=LEVEL, steps=tuple(steps), undecided=undecided
    )


@freeze
class _Search:
    """A search with the two ends that every load is compared with. `alpha` is that of one test."""

    session: SurfaceSession
    task: str
    good: int
    bad: int
    alpha: float

    async def decide(self, load: int) -> LoadStep:
        """Ask a load, if needed several times, until it is like one of the ends."""
        finding, asked = "undecided", 0
        against_good = against_bad = (0, 0)
        while finding == "undecided" and asked < ASKINGS:
            asked += 1
            if not await self._ask(load, asked):
                finding = "broken"  # It was given up.
                break
            here = self._read(load, asked)
            against_good = _compare(self._read(self.good, asked), here)
            against_bad = _compare(here, self._read(self.bad, asked))
            if mcnemar(*against_good).p_exact <= self.alpha:
                finding = "broken"
            elif mcnemar(*against_bad).p_exact <= self.alpha:
                finding = "sound"
        return LoadStep(
            load=load,
            askings=asked,
            finding=finding,  # type: ignore[arg-type]
            against_good=against_good,
            against_bad=against_bad,
        )

    async def _ask(self, load: int, asked: int) -> bool:
        """Ask the load for the time `asked`, and the ends as often. Return False if given up."""
        for one in (load, self.good, self.bad):
            name = _name_asking(one, asked)
            await self.session.ask(name, one, self.task)
            if not self.session.is_done(name):
                return False
        return True

    def _read(self, load: int, asked: int) -> list[TaskAnswers]:
        found = [self.session.find(_name_asking(load, n)) for n in range(1, asked + 1)]
        return [one.read_answers(self.task) for one in found if one is not None]


def _name_asking(load: int, asked: int) -> str:
    return str(load) if asked == 1 else f"{load}_{asked}"


def _compare(before: Sequence[TaskAnswers], after: Sequence[TaskAnswers]) -> tuple[int, int]:
    """Count the prompts whose score sum over all askings fell and rose."""
    sign = 1.0 if before[0].task.result.metric.higher_is_better else -1.0
    every = [one.lines[0] for one in (*before, *after)]
    prompts = [prompt for prompt in every[0] if all(prompt in lines for lines in every)]
    changes = []
    for prompt in prompts:
        first, second = (
            math.fsum(one.lines[0][prompt].value for one in side) for side in (before, after)
        )
        changes.append(sign * (second - first))
    return sum(change < 0.0 for change in changes), sum(change > 0.0 for change in changes)
