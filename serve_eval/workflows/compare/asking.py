"""Send the requests of a comparison to both sides, some of them twice for the noise floor.

The sides take turns if their servers do not fit on the GPUs together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from serve_eval.client.connection import connect
from serve_eval.errors import NoRoomError
from serve_eval.evaluation.capabilities.sampling import to_fields
from serve_eval.evaluation.engine.start_times import Labelled, Lockstep, Participant
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import launch
from serve_eval.evaluation.run_cost import find_reached_limit
from serve_eval.evidence.engine_counters import Companions
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.sampling_fields import fingerprint
from serve_eval.schema import (
    Comparison,
    Divergence,
    Endpoint,
    Limits,
    Plan,
    Sample,
    SamplingDefaults,
    SamplingParams,
)
from serve_eval.storage.sessions import read_defaults, read_sessions
from serve_eval.storage.story_files import COMPARE
from serve_eval.workflows.compare.divergence import look_at_all, place_partings
from serve_eval.workflows.compare.sides import SELF, CompareRules, ComparisonSession, SideRun
from serve_eval.workflows.compare.verdict import Looked

SERVERS = "servers"
"""Folder with the logs of launched servers."""


async def ask_runs(
    runs: Sequence[SideRun],
    session: ComparisonSession,
    result: Callable[[], Comparison] | None,
    *,
    apart: bool,
) -> Looked | None:
    """Ask everything that is left, of both sides at once or, if that is impossible, one by one.

    `result` compares the answers, so that flips can be examined while both endpoints are up.
    """
    runs = _share_tokens(runs)
    groups = [
        [run for run in runs if run.side == side]
        for side in dict.fromkeys(run.side for run in runs)
    ]
    if not apart:
        try:
            async with _endpoints(groups, session) as endpoints:
                await _in_step(runs, endpoints, session)
                return None if result is None else await _look(runs, endpoints, session, result())
        except NoRoomError as error:
            if len(groups) < 2:
                raise
            session.notify(
                f"A and B are asked one after the other, since both do not fit at once: {error}"
            )
    for group in groups:
        if not all(run.done for run in group):
            async with _endpoints([group], session) as endpoints:
                await _in_step(group, endpoints, session)
    return None


def find_spent(runs: Sequence[SideRun]) -> str:
    """Return the limit that ended all unfinished runs, if theirs are not larger now; else ""."""
    left = [run for run in _share_tokens(runs) if not run.done]
    limits = [find_reached_limit(run.plan, read_sessions(run.folder)) for run in left]
    return limits[0] if limits and all(limits) else ""


def _share_tokens(runs: Sequence[SideRun]) -> list[SideRun]:
    """Return the runs with their parts of the tokens that all may cost, by their requests."""
    counts = [
        sum(len(p.dataset.samples) * run.plan.times(p.task.name) for p in run.prepared)
        for run in runs
    ]
    found = []
    for run, count in zip(runs, counts, strict=True):
        limits = run.plan.limits
        if limits.max_tokens_total is not None:
            part = limits.max_tokens_total * count // sum(counts)
            plan = replace(run.plan, limits=replace(limits, max_tokens_total=part))
            run = replace(run, plan=plan)
        found.append(run)
    return found


@asynccontextmanager
async def _endpoints(
    groups: Sequence[Sequence[SideRun]], session: ComparisonSession
) -> AsyncIterator[dict[str, Endpoint]]:
    """Launch the endpoint of each side."""
    async with AsyncExitStack() as stack:
        found = {}
        for group in groups:
            first = group[0]
            logs = session.out_dir / SERVERS / first.side.lower()
            logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            found[first.side] = await stack.enter_async_context(
                launch(first.plan, first.prepared, logs, notify=session.notify)
            )
        yield found


async def _in_step(
    runs: Sequence[SideRun], endpoints: Mapping[str, Endpoint], session: ComparisonSession
) -> None:
    """Ask everything that is unfinished.

    If A and B are both asked, they receive each prompt at the same time.
    """
    pending = [run for run in runs if not run.done]
    sides = [run for run in pending if run.label == run.side]
    participants = (
        dict(zip(sides, Lockstep().participants, strict=False)) if len(sides) == 2 else {}
    )
    companions = Companions()
    try:
        async with asyncio.TaskGroup() as group:
            for run in pending:
                participant, endpoint = participants.get(run), endpoints[run.side]
                group.create_task(_evaluate_side(run, endpoint, session, participant, companions))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _evaluate_side(
    run: SideRun,
    endpoint: Endpoint,
    session: ComparisonSession,
    participant: Participant | None,
    companions: Companions,
) -> None:
    """Ask what is left of a run, under its label."""
    try:
        await evaluate(
            run.plan,
            run.folder,
            progress=None if session.progress is None else Labelled(session.progress, run.label),
            environ=session.environ,
            launching=lambda *_: nullcontext(endpoint),
            notify=lambda line: session.notify(f"{run.label}: {line}"),
            prepared=run.prepared,
            participant=participant,
            seed=run.seed,
            companions=companions,
            part_of=COMPARE.command,
            check_defaults=partial(_check_defaults, run, session),
        )
    finally:
        if participant is not None:
            await participant.leave()


def _check_defaults(
    run: SideRun, session: ComparisonSession, found: SamplingDefaults | None
) -> None:
    """Check that what was found of a side's server leaves it comparable with the other side."""
    if run.label == run.side:
        session.policies.note(run.side, found, [p.task for p in run.prepared])


async def _look(
    runs: Sequence[SideRun],
    endpoints: Mapping[str, Endpoint],
    session: ComparisonSession,
    comparison: Comparison,
) -> Looked:
    """Ask both endpoints again for the listed flips; return nothing if one is a finished run.

    For listed partings, A alone is asked: its tokens show at which of them the answers parted.
    """
    sides = {run.side: run for run in runs if run.label == run.side}
    if len(sides) < 2:
        return Looked()
    flips: dict[tuple[str, str], Divergence] = {}
    tokens: dict[tuple[str, str], int] = {}
    async with (
        connect(sides["A"].plan, endpoints["A"], session.environ) as a,
        connect(sides["B"].plan, endpoints["B"], session.environ) as b,
    ):
        for client, side in ((a, sides["A"]), (b, sides["B"])):
            if (defaults := read_defaults(side.folder)) is not None:
                client.encoder.neutral = to_fields(defaults)
        for p, task in zip(sides["A"].prepared, comparison.tasks, strict=True):
            samples = list_samples(p.dataset.samples, {flip.id for flip in task.flips})
            seen = await look_at_all(p.task, samples, a, b)
            flips |= {
                (task.task, sample.id): one for sample, one in zip(samples, seen, strict=True)
            }
            partings = {} if task.exact is None else task.exact.partings
            asked = list_samples(p.dataset.samples, partings.keys())
            parted = [(sample, partings[sample.id]) for sample in asked]
            places = await place_partings(p.task, parted, a)
            tokens |= {(task.task, prompt): token for prompt, token in places.items()}
    return Looked(flips, tokens)


def list_samples(samples: Sequence[Sample], wanted: Collection[str]) -> list[Sample]:
    """Return the samples of answers, with the ids of these: that of a repeat sets its seed."""
    repeats: dict[str, list[str]] = {}
    for name in wanted:
        prompt, mark, number = name.rpartition("#")
        if mark and number.isdigit():
            repeats.setdefault(prompt, []).append(name)
    found = []
    for sample in samples:
        if sample.id in wanted:
            found.append(sample)
        found += [replace(sample, id=name) for name in repeats.get(sample.id, ())]
    return found


AGAIN = "again"
"""Folder of the second answers of A, or of B if A is a finished run."""
AGAIN_B = "again_b"
"""Folder of the second answers of B if A has second answers too."""


def ask_twice(runs: Sequence[SideRun], rules: CompareRules, out_dir: Path) -> list[SideRun]:
    """Return the runs that ask some prompts of each live side again, the same ones of both.

    They cover the tasks without repeats, since repeats show the noise already, and those with a
    sampling seed: each repeat has a seed of its own, and second answers have those of the first
    ones. The requests are sent next to the others, with a concurrency at which they take about as
    long, and in another order: a prompt is not asked twice at the same time.
    """
    found = []
    for run, name in zip(runs, (AGAIN, AGAIN_B), strict=False):
        found += _repeat_some(run, rules.again, out_dir / name)
    return found


def _repeat_some(first: SideRun, count: int, folder: Path) -> list[SideRun]:
    """Return the run that asks some prompts of a side again; none if there is nothing to ask."""
    once = [
        p
        for p in first.prepared
        if first.plan.times(p.task.name) == 1 or _is_seeded(p.task.sampling)
    ]
    if not count or not once:
        return []
    total = sum(len(p.dataset.samples) * first.plan.times(p.task.name) for p in first.prepared)
    prepared = [
        p if p.task.recorded and count == SELF else _draw(p, first.plan, count) for p in once
    ]
    asked = sum(len(p.dataset.samples) for p in prepared)
    limits = _share(first.plan.limits, asked / total)
    plan = replace(first.plan, limits=limits, seed=first.plan.seed + 1, limit=count)
    plan = replace(plan, tasks=tuple(p.spec for p in once), repeats=1, repeats_of={})
    label = f"{first.side} once more"
    assert first.seed is not None
    return [
        SideRun(
            side=first.side,
            plan=plan,
            prepared=prepared,
            folder=folder,
            label=label,
            seed=first.seed + 1,
        )
    ]


def _is_seeded(sampling: SamplingParams) -> bool:
    """Return True if answers are drawn with a seed, which requests at temperature 0 lack."""
    return sampling.seed is not None and sampling.temperature != 0


def _draw(prepared: PreparedTask, plan: Plan, count: int) -> PreparedTask:
    """Draw `count` samples of a task, by the seed of the plan."""
    samples = prepared.dataset.samples
    rng = random.Random(f"{plan.seed}:again:{prepared.task.name}")
    chosen = sorted(rng.sample(range(len(samples)), min(count, len(samples))))
    dataset = replace(prepared.dataset, samples=[samples[i] for i in chosen])
    return replace(prepared, dataset=dataset, fingerprint=fingerprint(prepared.task, dataset))


def _share(limits: Limits, share: float) -> Limits:
    """Return the limits with a share of the load."""
    assert limits.concurrency != "auto"
    rate = None if limits.rate_limit is None else limits.rate_limit * share
    in_flight = max(1, round(limits.concurrency * share))
    return replace(limits, concurrency=in_flight, rate_limit=rate, pace="free")
