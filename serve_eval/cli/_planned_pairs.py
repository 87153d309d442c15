"""Say in a dry run what drop a paired rule will prove, by the noise of the reference's runs."""

from __future__ import annotations

from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import MEAN, Plan
from serve_eval.stats.early_paired import SPENT_ON_LOOKS

POWER = 0.8
"""Probability with which the least drop is proven, as in `serve-eval references power`."""


def takes_pairs(prepared: PreparedTask) -> bool:
    """Return True if a rule that compares pairs judges a task by a reference with scores."""
    reference, rule = prepared.reference, load_verdict_rule(prepared.rule.name)
    return reference is not None and reference.runs is not None and rule.early_stop == "pairs"


def plan_pairs(plan: Plan, prepared: PreparedTask, tests: int) -> dict[str, str]:
    """Return what groups and the flip rate of the reference leave of a task's prompts.

    `tests` is the number of paired tests of the run, which share alpha (Holm): the drop is that of
    the worst rank. Nothing is said of a drop without a flip rate, which one run does not show.
    """
    from serve_eval.stats.planning import find_least_drop
    from serve_eval.verdicts.reference_noise import measure_noise

    found = prepared.reference
    if found is None or not takes_pairs(prepared) or prepared.task.aggregation is not MEAN:
        return {}
    if (noise := measure_noise(prepared.dataset, found)) is None:
        return {}
    alone = max(1, round(noise.prompts / noise.effect))
    said = {}
    if noise.groups is not None:
        said["groups"] = (
            f"{noise.prompts} prompts in {noise.groups} groups tell a paired rule as much as"
            f" {alone} independent ones (design effect {noise.effect:.3g}, {noise.source})"
        )
    if noise.flip_rate is None:
        return said
    looks = SPENT_ON_LOOKS if plan.early_stop is not None else 0.0
    alpha = (1.0 - looks) * prepared.hypothesis.alpha / max(1, tests)
    flips = max(noise.flip_rate, 1.0 / noise.prompts)
    both = flips * (1.0 / noise.runs + 1.0 / plan.times(prepared.task.name)) / 2.0
    drop = find_least_drop(alone, both, alpha, 1.0 - POWER)
    of = f"at a flip rate of {flips:.3g}, that of the reference's {noise.runs} runs"
    said["proven_drop"] = (
        f"none with a probability of {POWER:g}, {of}"
        if drop is None
        else f"{100 * drop:.2f} points with a probability of {POWER:g}, {of}"
    )
    return said
