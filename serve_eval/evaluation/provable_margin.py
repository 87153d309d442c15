"""Refuse a margin that the planned answers can never exclude, before the first request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from serve_eval.errors import PlanError
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import MEAN, Plan, Spec
from serve_eval.stats.clusters import cluster_keys

RULES = ("paired", "noninferiority")
"""The rules that pass if a margin is excluded."""
MARGIN = "margin"


def check_margins(plan: Plan, prepared: Sequence[PreparedTask]) -> None:
    """Raise PlanError if a run cannot exclude its margin of its reference, however equal it is."""
    sizes = [
        (p, len(p.reference.runs.values), plan.times(p.task.name))
        for p in prepared
        if p.reference is not None and p.reference.runs is not None
    ]
    if not plan.integration_test:
        check_pair_margins(plan.verdict, sizes, halved=plan.early_stop is not None)


def check_pair_margins(
    rule: Spec, sizes: Iterable[tuple[PreparedTask, int, int]], *, halved: bool = False
) -> None:
    """Raise PlanError for tasks, with the answers to a prompt of both sides, that are too small.

    The margin that the paired rule takes from the classic test is never too small for right/wrong
    answers, and is not checked. `halved`: early looks have half of the level.
    """
    if rule.name not in RULES or (rule.name == "paired" and rule.options.get(MARGIN) is None):
        return
    options = load_verdict_rule(rule.name).check_options(rule.options)
    margin = options.get(MARGIN, load_verdict_rule(rule.name).default(MARGIN))
    assert isinstance(margin, int | float)
    found = [
        told
        for p, before, after in sizes
        if (told := _describe_small(p, before, after, float(margin), halved=halved)) is not None
    ]
    if found:
        raise PlanError(
            [problem for problem, _ in found],
            hint="\n".join(dict.fromkeys(hint for _, hint in found)),
        )


def _describe_small(
    p: PreparedTask, before: int, after: int, margin: float, *, halved: bool
) -> tuple[str, str] | None:
    """Return the problem and what would do; None if the margin can be excluded."""
    from serve_eval.stats.exclusion import least_excluded, num_pairs_to_exclude
    from serve_eval.stats.repeat_pairs import count_pairs_of_repeats

    metric, name = p.task.metric, p.task.name
    if p.task.aggregation.name != MEAN.name or metric.lo is None or metric.hi is None:
        return None
    span = abs(metric.scale) * (metric.hi - metric.lo)
    alpha = p.hypothesis.alpha / (2.0 if halved else 1.0)
    n = len(p.dataset.samples) if p.part is None else p.part.total
    units, largest = _count_units(p)
    units = round(units * n / len(p.dataset.samples))
    # Groups of unequal sizes count by their sums, whose range is that of the largest.
    span *= largest * units / n
    repeats = count_pairs_of_repeats(before, after)
    if margin >= span or (needed := num_pairs_to_exclude(margin / span, alpha)) <= units * repeats:
        return None
    least = span * least_excluded(units * repeats, alpha)
    times = math.ceil(needed / units)
    rounded = math.ceil(100.0 * least + 1e-9) / 100.0
    grouped = "" if units == n else f" in {units} groups"
    return (
        f"{name}: a margin of {margin:g} points is out of reach: {n} prompts{grouped} with {before}"
        f" and {after} answers of the two sides exclude no drop below {least:.3g} points, even if"
        " all answers are equal",
        f"{name}: ask {math.ceil(needed / repeats * n / units)} prompts or more, or ask each"
        f" {times} times on both sides (--repeats {times}, and as many runs of the reference), or"
        f" set a margin of {rounded:g} points or more.",
    )


def _count_units(p: PreparedTask) -> tuple[int, int]:
    """Return the number of groups, of which a single prompt is one, and the largest one's size."""
    keys = cluster_keys([sample.group for sample in p.dataset.samples])
    if keys is None:
        return len(p.dataset.samples), 1
    sizes = Counter(keys)
    return len(sizes), max(sizes.values())
