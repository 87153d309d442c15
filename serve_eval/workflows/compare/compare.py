"""The story of a comparison: the same prompts to two endpoints at the same time, and B judged with A as the reference.

Either side may also be a finished run, which is asked nothing. In the folder of a comparison:

compare.json      what is compared, by which rule and margin: fixed before the first request
order.json        the seed of the random order in which both are asked
a/, b/            ordinary run folders            again/    the second answers of the endpoint that is asked twice
servers/          logs of launched servers        comparison.json    the result
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import NoRoomError, NotComparableError, PlanError, RunFolderError
from serve_eval.evaluation import first_token
from serve_eval.evaluation.agreement.answer_pairs import read_report, read_task
from serve_eval.evaluation.endpoint.launch import check_launcher, launch, with_model
from serve_eval.evaluation.engine.lockstep import Meeting, Seat
from serve_eval.evaluation.engine.progress import Labelled
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.storage import order_seed, run_folder
from serve_eval.evaluation.storage.file_names import COMPARISON, COMPARISON_PLAN
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import scoped
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.schema import HOLDOUT, Comparison, Divergence, Endpoint, Plan, Progress, Spec, lives
from serve_eval.verdicts.below_reference import expected
from serve_eval.workflows.compare.divergence import look_at_all
from serve_eval.workflows.compare.verdict import (
    SCHEMA_VERSION,
    check_rule,
    compared,
    reference_runs_needed,
    same_fingerprints,
)

PLAN_FILE, RESULT_FILE, AGAIN, SERVERS = COMPARISON_PLAN, COMPARISON, "again", "servers"
SELF, SHOW_FLIPS = 200, 20
"""Unless told otherwise: prompts that one endpoint is asked twice, and flips that are listed and looked at closely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is compared: the run that `folder` holds, or without one, what asking by the plan gives."""

    plan: Plan
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How it is judged, fixed before the first request: by which rule, and how many prompts are asked twice. Fields of
    the protocol in `allow_mismatch` may differ between the sides."""

    rule: Spec
    again: int = SELF
    allow_mismatch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """A run of the comparison: a plan with its model, and its run folder. `side` is A or B, also for second answers.
    `seed` is that of the random order, known once the folder is held."""

    side: str
    plan: Plan
    prepared: Sequence[PreparedTask]
    folder: Path
    label: str
    seed: int | None = None

    @property
    def done(self) -> bool:
        """Whether every sample has an answer."""
        if not (self.folder / run_folder.REPORT_FILE).exists():
            return False
        return not any(task.result.failed for task in read_report(self.folder).tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surroundings:
    """What every run of a comparison is given."""

    out_dir: Path
    environ: Mapping[str, str]
    told: Callable[[str], None]
    progress: Progress | None


@scoped
async def compare(
    a: Side,
    b: Side,
    rules: Rules,
    out_dir: Path,
    *,
    show_flips: int = SHOW_FLIPS,
    one_after_the_other: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    told: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Asks what is still to be asked, compares, and writes comparison.json.

    Both endpoints are asked each prompt at the same time, by A's limits, seed and repeats; with `one_after_the_other`,
    or where the GPUs do not suffice for the servers of both, first A is asked and then B. `strict` makes an undecided
    comparison fail. Raises NotComparableError when the sides do not ask the same, naming the fields; RunFolderError for
    the folder of another comparison; ServeEvalError for what stops a run: what was had by then is in the folder.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    check_rule(rules.rule)
    around = _Surroundings(out_dir=out_dir, environ=environ, told=told, progress=progress)
    runs = await _prepared(a, b, around)
    _check_alike(a, b, runs, rules)
    with run_folder.held(out_dir, PLAN_FILE, "comparison"):
        _bind(out_dir, a, b, rules)
        runs = _in_one_order(runs, around)
        if (twice := _asked_twice(runs, rules, out_dir)) is not None:
            runs = [*runs, twice]
        if a.folder is not None:
            runs = [replace(run, prepared=_beside(a.folder, run.prepared)) for run in runs]
        looked, hidden = _looked_at(out_dir), _hidden(a, runs)
        (out_dir / RESULT_FILE).unlink(missing_ok=True)

        def result() -> Comparison:
            return compared(
                a.folder or out_dir / "a",
                b.folder or out_dir / "b",
                rules.rule,
                again=None if twice is None else (twice.side, twice.folder),
                show_flips=show_flips,
                looked=looked,
                hidden=hidden,
                strict=strict,
            )

        unseen = looked is None and show_flips > 0 and len({run.side for run in runs}) == 2
        if unseen or not all(run.done for run in runs):
            looked = await _asked(runs, around, result if show_flips else None, apart=one_after_the_other)
        comparison = replace(
            result(),
            started_at=started_at.isoformat(timespec="seconds"),
            wall_s=round(time.monotonic() - began, 3),
        )
        run_folder.write_private(out_dir / RESULT_FILE, run_folder.pretty_json(comparison))
    return comparison


# ------------------------------------------------------------------------------------------ before the first request


async def _prepared(a: Side, b: Side, around: _Surroundings) -> list[_Run]:
    """The sides that are asked."""
    runs = []
    for name, side in (("A", a), ("B", b)):
        if side.folder is not None:
            continue
        plan = replace(side.plan, no_reference=True, early_stop=None, verdict=Spec(name="classic"))
        if name == "B" and a.folder is None:
            plan = replace(plan, limits=a.plan.limits, seed=a.plan.seed)
            plan = replace(plan, repeats=a.plan.repeats, repeats_of=a.plan.repeats_of)
            plan = replace(plan, tasks=_in_the_order_of(a.plan.tasks, plan.tasks))
        if plan.limits.concurrency == "auto":
            raise PlanError("concurrency: a comparison needs a fixed number", hint="Such as --concurrency 64.")
        extensions.include(plan.include_path)
        plan = await with_model(plan, around.environ)
        folder = around.out_dir / name.lower()
        if not folder.exists():
            check_launcher(plan)
        plan = await first_token.settled(plan, folder, around.environ)
        prepared = await asyncio.to_thread(prepare, plan)
        runs.append(_Run(side=name, plan=plan, prepared=prepared, folder=folder, label=name))
    return runs


def _in_the_order_of(first: Sequence[Spec], tasks: Sequence[Spec]) -> tuple[Spec, ...]:
    """The tasks in the order of others of the same names: in another order both sides are asked different prompts."""
    places = {spec.name: place for place, spec in enumerate(first)}
    return tuple(sorted(tasks, key=lambda spec: places.get(spec.name, len(places))))


def _beside(finished: Path, prepared: Sequence[PreparedTask]) -> list[PreparedTask]:
    """Let the tasks expect the scores of a finished run. Of sides that are asked at the same time neither has any."""
    report = read_report(finished)
    known = {task.result.task for task in report.tasks}
    found = []
    for p in prepared:
        earlier = None
        if p.task.name in known:
            metric, lines = p.task.metric, read_task(finished, report, p.task.name).lines
            ids = [sample.id for sample in p.dataset.samples]
            runs = [[line.value if (line := one.get(name)) else math.nan for name in ids] for one in lines]
            earlier = expected(runs, lo=metric.lo, hi=metric.hi, higher_is_better=metric.higher_is_better)
        found.append(replace(p, earlier=earlier))
    return found


def _check_alike(a: Side, b: Side, runs: Sequence[_Run], rules: Rules) -> None:
    """Raises NotComparableError when A and B do not ask or score the same, or A has too few runs for the rule."""
    if (needed := reference_runs_needed(rules.rule)) > min(a.plan.times(spec.name) for spec in a.plan.tasks):
        raise NotComparableError(
            f"--verdict {rules.rule.name}: A is the reference, and has to answer each prompt {needed} times or more",
            hint=f"Give --repeats {needed}, or more.",
        )
    prints = {run.side: {p.task.name: p.fingerprint for p in run.prepared} for run in runs}
    for name, side in (("A", a), ("B", b)):
        if side.folder is not None:
            prints[name] = run_folder.saved_fingerprints(side.folder)
    if lines := same_fingerprints(prints["A"], prints["B"], rules.allow_mismatch):
        more = [f"... and {len(lines) - 20} more"] if len(lines) > 20 else []
        raise NotComparableError(
            "A and B do not ask the same:\n" + "\n".join(f"  {line}" for line in (*lines[:20], *more)),
            hint="Compare all the same where that is meant: --allow-mismatch FIELD.",
        )


def _bind(out_dir: Path, a: Side, b: Side, rules: Rules) -> None:
    """Writes down what is compared and how, or raises RunFolderError where the folder holds something else: a margin
    that is chosen when the answers are known proves nothing."""
    content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "rules": rules}
    for name, side in (("a", a), ("b", b)):
        content[name] = {"run": str(side.folder.absolute())} if side.folder else {"launcher": side.plan.launcher}
    file = out_dir / PLAN_FILE
    wanted = msgspec.json.decode(msgspec.json.encode(content))
    try:
        found = msgspec.json.decode(file.read_bytes()) if file.exists() else wanted
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{file} cannot be read: {error}", hint="Use another folder with -o.") from error
    if differing := run_folder.differences(found, wanted):
        raise RunFolderError(
            f"{out_dir} holds another comparison:\n" + "\n".join(f"  {line}" for line in differing),
            hint="Use another folder with -o.",
        )
    run_folder.write_private(file, run_folder.pretty_json(content))


def _in_one_order(runs: Sequence[_Run], around: _Surroundings) -> list[_Run]:
    """Give both sides one seed, by which each asks the same prompts in the same order: in two orders each would wait
    for the other."""
    if not runs:
        return []
    plan = runs[0].plan
    seed = order_seed.shared(around.out_dir, plan, [run.folder for run in runs])
    if (line := order_seed.not_followed(plan, seed)) is not None:
        around.told(f"warning: {line}")
    return [replace(run, seed=seed) for run in runs]


def _asked_twice(runs: Sequence[_Run], rules: Rules, out_dir: Path) -> _Run | None:
    """Some prompts of A for the second time, or of B where A is asked nothing: of tasks of which repeats do not tell
    that already. None where they do of all.

    They are asked beside the others, so many fewer at a time that they take about as long, and in another order: the
    same prompt is not asked twice at once.
    """
    first = runs[0] if runs else None
    once = [p for p in first.prepared if first.plan.times(p.task.name) == 1] if first is not None else []
    if first is None or not rules.again or not once:
        return None
    total = sum(len(p.dataset.samples) * first.plan.times(p.task.name) for p in first.prepared)
    prepared, asked = [], 0
    for p in once:
        samples = p.dataset.samples
        rng = random.Random(f"{first.plan.seed}:again:{p.task.name}")
        chosen = sorted(rng.sample(range(len(samples)), min(rules.again, len(samples))))
        dataset = replace(p.dataset, samples=[samples[i] for i in chosen])
        prepared.append(replace(p, dataset=dataset, fingerprint=fingerprint(p.task, dataset)))
        asked += len(chosen)
    limits = first.plan.limits
    assert limits.concurrency != "auto"
    share = asked / total
    rate = None if limits.rate_limit is None else limits.rate_limit * share
    limits = replace(limits, concurrency=max(1, round(limits.concurrency * share)), rate_limit=rate)
    plan = replace(first.plan, limits=limits, seed=first.plan.seed + 1, limit=rules.again)
    plan = replace(plan, tasks=tuple(p.spec for p in once), repeats=1, repeats_of={})
    label = f"{first.side} once more"
    assert first.seed is not None
    return _Run(side=first.side, plan=plan, prepared=prepared, folder=out_dir / AGAIN, label=label, seed=first.seed + 1)


def _hidden(a: Side, runs: Sequence[_Run]) -> frozenset[tuple[str, str]]:
    """The prompts whose texts are not to be shown: only one's own cases have such."""
    if not any(lives(spec.name) for spec in a.plan.tasks):
        return frozenset()
    prepared = runs[0].prepared if runs else prepare(replace(a.plan, no_reference=True))
    return frozenset((p.task.name, s.id) for p in prepared for s in p.dataset.samples if HOLDOUT in s.metadata)


def _looked_at(out_dir: Path) -> dict[tuple[str, str], Divergence] | None:
    """What an earlier session saw of the first different tokens; None where none came to its end."""
    try:
        earlier = msgspec.json.decode((out_dir / RESULT_FILE).read_bytes(), type=Comparison)
    except (OSError, msgspec.MsgspecError):
        return None
    return {(t.task, flip.id): flip.divergence for t in earlier.tasks for flip in t.flips if flip.divergence}


# --------------------------------------------------------------------------------------------------- the requests


async def _asked(
    runs: Sequence[_Run], around: _Surroundings, result: Callable[[], Comparison] | None, *, apart: bool
) -> dict[tuple[str, str], Divergence] | None:
    """Asks what is to be asked of all at the same time, or side by side where that cannot be. `result` compares what
    was had, to be looked at closely while both endpoints are there."""
    groups = [[run for run in runs if run.side == side] for side in dict.fromkeys(run.side for run in runs)]
    if not apart:
        try:
            async with _endpoints(groups, around) as endpoints:
                await _in_step(runs, endpoints, around)
                return None if result is None else await _look(runs, endpoints, around, result())
        except NoRoomError as error:
            if len(groups) < 2:
                raise
            around.told(f"one after the other, since both do not fit: {error}")
    for group in groups:
        if not all(run.done for run in group):
            async with _endpoints([group], around) as endpoints:
                await _in_step(group, endpoints, around)
    return None


@asynccontextmanager
async def _endpoints(groups: Sequence[Sequence[_Run]], around: _Surroundings) -> AsyncIterator[dict[str, Endpoint]]:
    """The endpoint of each side."""
    async with AsyncExitStack() as stack:
        found = {}
        for group in groups:
            first = group[0]
            logs = around.out_dir / SERVERS / first.side.lower()
            logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            found[first.side] = await stack.enter_async_context(
                launch(first.plan, first.prepared, logs, told=around.told)
            )
        yield found


async def _in_step(runs: Sequence[_Run], endpoints: Mapping[str, Endpoint], around: _Surroundings) -> None:
    """Asks all that is not finished; A and B, where both are asked, prompt by prompt at the same time."""
    pending = [run for run in runs if not run.done]
    sides = [run for run in pending if run.label == run.side]
    seats = dict(zip(sides, Meeting().seats, strict=False)) if len(sides) == 2 else {}
    try:
        async with asyncio.TaskGroup() as group:
            for run in pending:
                group.create_task(_evaluated(run, endpoints[run.side], around, seats.get(run)))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _evaluated(run: _Run, endpoint: Endpoint, around: _Surroundings, seat: Seat | None) -> None:
    try:
        await evaluate(
            run.plan,
            run.folder,
            progress=None if around.progress is None else Labelled(around.progress, run.label),
            environ=around.environ,
            launching=lambda *_: nullcontext(endpoint),
            told=lambda line: around.told(f"{run.label}: {line}"),
            prepared=run.prepared,
            seat=seat,
            seed=run.seed,
        )
    finally:
        if seat is not None:
            await seat.leave()


async def _look(
    runs: Sequence[_Run], endpoints: Mapping[str, Endpoint], around: _Surroundings, comparison: Comparison
) -> dict[tuple[str, str], Divergence]:
    """Asks both endpoints once more for the flips that are listed; nothing where one of them is a finished run."""
    sides = {run.side: run for run in runs if run.label == run.side}
    if len(sides) < 2:
        return {}
    found: dict[tuple[str, str], Divergence] = {}
    async with (
        connect(sides["A"].plan, endpoints["A"], around.environ) as a,
        connect(sides["B"].plan, endpoints["B"], around.environ) as b,
    ):
        for p, task in zip(sides["A"].prepared, comparison.tasks, strict=True):
            wanted = {flip.id for flip in task.flips}
            samples = [sample for sample in p.dataset.samples if sample.id in wanted]
            told = await look_at_all(p.task, samples, a, b)
            found |= {(task.task, sample.id): one for sample, one in zip(samples, told, strict=True)}
    return found
