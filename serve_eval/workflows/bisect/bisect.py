"""Find the option or the step that broke the accuracy, by tests that err.

The good configuration is asked first and in full, then the bad one. After that, each configuration
is the one that is expected to tell most about what is to blame (`serve_eval.stats.noisy_search`).
It is asked until a drop beyond the margin is shown or excluded on the same prompts.

bisect.json       what is searched and how: fixed before the first request
bisection.json    the steps so far, and the result
good_scores/      the scores of the good configuration
runs/<number>/    one ordinary run folder per configuration, 00 for the good one
servers/<number>/ logs of the servers
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import EndpointError, LaunchError, NotComparableError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import (
    Launching,
    check_launcher,
    count_gpus,
    launch,
    with_model,
)
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Bisection, BisectionResult, BisectionStep, Plan, Progress, Report
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import BISECTION_RUNS
from serve_eval.storage.json_files import differences, refuse_other
from serve_eval.storage.story_files import BISECT
from serve_eval.verdicts.exit_code import INFRASTRUCTURE
from serve_eval.workflows.bisect.configurations import BisectRules, Configurations
from serve_eval.workflows.bisect.search import (
    ALPHA,
    CONFIDENCE,
    begin_step,
    choose,
    end_search,
    end_step,
    tests_of,
)
from serve_eval.workflows.bisect.testing import (
    NO_SERVER,
    HeldServer,
    StepOutcome,
    check_tasks,
    list_usual_margins,
    plan_reference,
    plan_test,
    read_failure,
    read_result,
    write_references,
)


@with_scope
async def bisect(
    found: Configurations,
    rules: BisectRules,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
    launching: Launching | None = None,
) -> Bisection:
    """Search, or go on with the search in the folder, and return what is known at its end.

    The state is also in bisection.json. Raises LaunchError or EndpointError if the good or the bad
    configuration cannot start or serve, NotComparableError if they do not ask the same, and
    RunFolderError for the folder of another search. The folder keeps the steps so far.
    """
    clock = Stopwatch()
    prepared = await prepare_both(found, rules, environ)
    with run_folder.hold(out_dir, BISECT.plan, "bisection"):
        bind_folder(out_dir, found, rules.margin)
        state = BISECT.read(out_dir, Bisection) or _begin(found, rules, prepared, clock)
        launching = launching or partial(launch, notify=notify)
        async with HeldServer(out_dir, launching) as held:
            session = _BisectSession(
                found=found,
                rules=rules,
                out_dir=out_dir,
                prepared=prepared,
                held=held,
                clock=clock,
                progress=progress,
                environ=environ,
                notify=notify,
                state=replace(state, ending=None, exit_code=INFRASTRUCTURE),
                before=state,
            )
            try:
                await _search(session)
            finally:
                session.save(session.state)
        session.save(session.state)
    return session.state


async def prepare_both(
    found: Configurations, rules: BisectRules, environ: Mapping[str, str]
) -> list[PreparedTask]:
    """Return the tasks of the good configuration, after checking that the bad one asks the same.

    Raises PlanError for options that cannot be launched, for tasks that cannot be compared, and for
    a budget that nobody can measure.
    """
    good, bad = found.good, found.make(found.space.bad)
    extensions.include(good.include_path)
    good = await with_model(good, environ)
    for plan in (good, bad):
        check_launcher(plan)
    if rules.budget_gpu_hours is not None and count_gpus(good) is None:
        raise PlanError(
            f"bisect.budget_gpu_hours: the launcher {good.launcher.name!r} does not know its GPUs",
            hint="Give --budget-starts instead.",
        )
    prepared = await asyncio.to_thread(prepare, plan_reference(good))
    other = replace(good, launcher=bad.launcher, model=bad.model or good.model)
    asked = await asyncio.to_thread(prepare, plan_reference(other))
    for a, b in zip(prepared, asked, strict=True):
        if lines := differences(dict(a.fingerprint), dict(b.fingerprint), a.task.name):
            raise NotComparableError(
                "the good and the bad configuration do not ask the same:\n"
                + "\n".join(f"  {line}" for line in lines)
            )
    check_tasks(prepared)
    return prepared


def _begin(
    found: Configurations, rules: BisectRules, prepared: list[PreparedTask], clock: Stopwatch
) -> Bisection:
    return Bisection(
        schema_version=BISECT.version,
        ordered=found.space.ordered,
        changes=found.changes,
        tasks=tuple(p.task.name for p in prepared),
        samples=sum(len(p.dataset.samples) for p in prepared),
        margin=rules.margin,
        alpha=ALPHA,
        confidence=CONFIDENCE,
        started_at=clock.started_at,
        wall_s=0.0,
        model=found.good.model,
        exit_code=INFRASTRUCTURE,
    )


@dataclass(slots=True, kw_only=True)
class _BisectSession:
    """The objects that the steps of a search share; `before` is the state of earlier sessions."""

    found: Configurations
    rules: BisectRules
    out_dir: Path
    prepared: list[PreparedTask]
    held: HeldServer
    clock: Stopwatch
    progress: Progress | None
    environ: Mapping[str, str]
    notify: Callable[[str], None]
    state: Bisection
    before: Bisection

    @property
    def level(self) -> float:
        """The alpha of one task: all tasks together share that of a step."""
        return ALPHA / len(self.prepared)

    def save(self, state: Bisection) -> None:
        """Keep the state in the folder, with what was spent so far."""
        held, before = self.held, self.before
        hours = held.gpu_s / 3600.0 + (before.gpu_hours or 0.0)
        known = held.gpus_known and (before.starts == 0 or before.gpu_hours is not None)
        starts = before.starts + held.starts
        self.state = replace(
            state,
            starts=starts,
            gpu_hours=hours if known and starts else None,
            wall_s=before.wall_s + self.clock.wall_s,
        )
        BISECT.write(self.out_dir, self.state)

    async def evaluate(self, plan: Plan, number: int) -> Report:
        """Run a plan in the folder of a step, on the server that is held for it."""
        server = await self.held.take(plan)
        seed = plan.limits.order_seed
        try:
            report = await evaluate(
                plan,
                locate_run(self.out_dir, number),
                progress=self.progress,
                environ=self.environ,
                launching=server.launch,
                notify=self.notify,
                seed=None if seed is None else seed + number,
                part_of=BISECT.command,
            )
        except NO_SERVER:
            await self.held.stop()
            raise
        await server.note_end(None)
        return report


async def _search(session: _BisectSession) -> None:
    await _ask_reference(session)
    while True:
        state = session.state
        if state.steps[-1].result is not None:
            following = choose(state, session.found, session.rules, session.held.key)
            if isinstance(following, str):
                session.save(end_search(state, following))
                return
            folder = _name_folder(session, len(state.steps))
            session.save(begin_step(state, session.found, following, folder))
        await _test(session, session.state.steps[-1].configuration)


def _name_folder(session: _BisectSession, number: int) -> str:
    return str(locate_run(session.out_dir, number).relative_to(session.out_dir))


async def _ask_reference(session: _BisectSession) -> None:
    """Ask the good configuration everything, unless an earlier session did."""
    if session.state.steps and session.state.steps[0].result is not None:
        return
    if not session.state.steps:
        folder = _name_folder(session, 0)
        session.save(begin_step(session.state, session.found, 0, folder))
    session.notify(f"step 0: {session.found.first}, as the reference")
    starts, gpu_s = session.held.starts, session.held.gpu_s
    report = await session.evaluate(plan_reference(session.found.good), 0)
    run = locate_run(session.out_dir, 0)
    write_references(session.out_dir, run, report, session.prepared, session.level)
    asked = sum(task.result.scored for task in report.tasks)
    tested = StepOutcome(result=BisectionResult.REFERENCE, asked=asked)
    _end(session, tested, starts, gpu_s)


async def _test(session: _BisectSession, configuration: int) -> None:
    """Test a configuration, and add what it says to the state."""
    state, found = session.state, session.found
    number = state.steps[-1].number
    session.notify(f"step {number}: {found.describe(configuration)}")
    starts, gpu_s = session.held.starts, session.held.gpu_s
    plan = plan_test(
        found.make(configuration), found.good, state.tasks, state.margin, session.out_dir
    )
    first = len(tests_of(state)) == 1
    try:
        report = await session.evaluate(plan, number)
    except NO_SERVER as error:
        if first:
            if isinstance(error, (LaunchError, EndpointError)):
                session.notify(f"{found.last} cannot be tested, so there is nothing to search")
            raise
        tested = read_failure(error)
    else:
        full = state.margin is None
        tested = read_result(
            report,
            level=session.level if full else None,
            usual=list_usual_margins(session.prepared) if full else None,
        )
    _end(session, tested, starts, gpu_s)
    session.notify(f"step {number}: {tested.result}")


def _end(session: _BisectSession, tested: StepOutcome, starts: int, gpu_s: float) -> None:
    held = session.held

    def spend(step: BisectionStep) -> BisectionStep:
        used = held.gpu_s - gpu_s if held.gpus_known and held.starts else None
        return replace(step, starts=step.starts + held.starts - starts, gpu_s=used)

    session.save(end_step(session.state, session.found, tested, spend))


def bind_folder(out_dir: Path, found: Configurations, margin: float | None) -> None:
    """Record what is searched, or raise RunFolderError if the folder holds another search."""
    good, bad = found.good, found.make(found.space.bad)
    content: dict[str, Any] = {
        "margin": margin,
        "changes": [change.name for change in found.changes],
        "good": {"model": good.model, "launcher": good.launcher},
        "bad": {"model": bad.model, "launcher": bad.launcher},
        "tasks": good.tasks,
        "limit": good.limit,
        "seed": good.seed,
    }
    wanted = msgspec.json.decode(msgspec.json.encode(content))
    refuse_other(out_dir, "bisection", BISECT.find_plan_content(out_dir), wanted)
    BISECT.write_plan(out_dir, content)


def locate_run(out_dir: Path, number: int) -> Path:
    """Return the run folder of a step."""
    return out_dir / BISECTION_RUNS / f"{number:02d}"
