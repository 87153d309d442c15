"""Measure the noise floor of a comparison: ask its endpoints some prompts twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.schema import Limits, Plan, SamplingParams
from serve_eval.storage import run_folder
from serve_eval.workflows.compare.sides import CompareRules, SideRun

AGAIN = "again"
"""Folder of the second answers of A, or of B if A is a finished run."""
AGAIN_B = "again_b"
"""Folder of the second answers of B if A has second answers too."""


def ask_twice(
    runs: Sequence[SideRun], rules: CompareRules, out_dir: Path, *, ended: bool
) -> list[SideRun]:
    """Return the runs that ask some prompts of each live side again, the same ones of both.

    They cover the tasks without repeats, since repeats show the noise already, and those with a
    sampling seed: each repeat has a seed of its own, and second answers have those of the first
    ones. The requests are sent next to the others, with a concurrency at which they take about as
    long, and in another order: a prompt is not asked twice at the same time. `ended`: the folder
    has a result. If that is of an older version, nothing is asked that it did not ask.
    """
    found = []
    for run, name in zip(runs, (AGAIN, AGAIN_B), strict=False):
        folder = out_dir / name
        if not ended:
            found += _repeat_some(run, rules.again, folder, run.prepared)
        elif folder.exists():
            known = run_folder.read_fingerprints(folder)
            asked = [p for p in run.prepared if p.task.name in known]
            found += _repeat_some(run, rules.again, folder, asked)
    return found


def _repeat_some(
    first: SideRun, count: int, folder: Path, asked_first: Sequence[PreparedTask]
) -> list[SideRun]:
    """Return the run that asks some prompts of a side again; none if there is nothing to ask."""
    once = [
        p for p in asked_first if first.plan.times(p.task.name) == 1 or _is_seeded(p.task.sampling)
    ]
    if not count or not once:
        return []
    total = sum(len(p.dataset.samples) * first.plan.times(p.task.name) for p in first.prepared)
    prepared = [_draw(p, first.plan, count) for p in once]
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
    return replace(limits, concurrency=max(1, round(limits.concurrency * share)), rate_limit=rate)
