"""Measure the noise floor of a comparison: ask one endpoint some prompts twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.schema import Limits, Plan
from serve_eval.workflows.compare.sides import CompareRules, SideRun

AGAIN = "again"
"""Folder of the second answers."""


def ask_twice(runs: Sequence[SideRun], rules: CompareRules, out_dir: Path) -> SideRun | None:
    """Return the run that asks some prompts of A again, or of B if A is a finished run.

    It covers the tasks without repeats, since repeats show the noise already; None if there are
    none. The requests are sent next to the others, with a concurrency at which they take about as
    long, and in another order: a prompt is not asked twice at the same time.
    """
    first = runs[0] if runs else None
    once = (
        [p for p in first.prepared if first.plan.times(p.task.name) == 1]
        if first is not None
        else []
    )
    if first is None or not rules.again or not once:
        return None
    total = sum(len(p.dataset.samples) * first.plan.times(p.task.name) for p in first.prepared)
    prepared = [_draw(p, first.plan, rules.again) for p in once]
    asked = sum(len(p.dataset.samples) for p in prepared)
    limits = _share(first.plan.limits, asked / total)
    plan = replace(first.plan, limits=limits, seed=first.plan.seed + 1, limit=rules.again)
    plan = replace(plan, tasks=tuple(p.spec for p in once), repeats=1, repeats_of={})
    label = f"{first.side} once more"
    assert first.seed is not None
    return SideRun(
        side=first.side,
        plan=plan,
        prepared=prepared,
        folder=out_dir / AGAIN,
        label=label,
        seed=first.seed + 1,
    )


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
