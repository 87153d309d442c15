"""Take runs that differ only in their sampling seeds as the draws that they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from serve_eval.schema import Plan, Spec, Task

SEED = "seed"
"""The option and the field of a task's protocol with the sampling seed."""


def leave_distinct_seeds(
    plans: Sequence[Plan], prints: Sequence[Mapping[str, Mapping[str, str]]]
) -> tuple[list[Plan], list[Mapping[str, Mapping[str, str]]]]:
    """Leave out the seeds of tasks that each run asked once, with a seed of its own.

    Such runs are draws as those without a seed are, so their mean is a reference without one. Runs
    that share a seed keep it: they are one draw. `prints` are the fingerprints of the runs.
    """
    seeds: dict[str, list[object]] = {}
    for plan in plans:
        for spec in plan.tasks:
            seeds.setdefault(spec.name, []).append(spec.options.get(SEED))
    drawn = {
        name
        for name, found in seeds.items()
        if len(found) == len(plans) > 1
        and None not in found
        and len(set(found)) == len(found)
        and all(plan.times(name) == 1 for plan in plans)
    }
    return (
        [replace(plan, tasks=tuple(_drop(one, drawn) for one in plan.tasks)) for plan in plans],
        [
            {
                name: {**found, SEED: "null"} if name in drawn else found
                for name, found in of.items()
            }
            for of in prints
        ],
    )


def _drop(spec: Spec, drawn: Collection[str]) -> Spec:
    if spec.name not in drawn:
        return spec
    return replace(spec, options={k: v for k, v in spec.options.items() if k != SEED})


def with_seed(fingerprint: Mapping[str, str], saved: Mapping[str, str]) -> dict[str, str]:
    """Return a fingerprint with the seed of a saved one."""
    kept = {k: v for k, v in fingerprint.items() if k != SEED}
    return {**kept, SEED: saved[SEED]} if SEED in saved else kept


def describe_seeds(task: Task, plans: Sequence[Plan]) -> str:
    """Return how the runs of a task were drawn: by their plans, or by the seed of the task."""
    if task.sampling.temperature == 0:
        return "temperature 0, so that no seed matters"
    found = [
        spec.options.get(SEED, task.sampling.seed)
        for plan in plans
        for spec in plan.tasks
        if spec.name == task.name
    ]
    repeats = sum(plan.times(task.name) for plan in plans)
    more = f", and the {repeats} repeats have seeds of their own" if repeats > len(plans) else ""
    named = ", ".join(str(seed) for seed in found if seed is not None)
    if not named:
        return "no sampling seed: the server drew"
    if len(set(found)) == 1:
        each = f" in each of {len(found)} runs" if len(found) > 1 else ""
        return f"sampling seed {found[0]}{each}{more}"
    return f"{len(set(found))} sampling seeds: {named}{more}"
