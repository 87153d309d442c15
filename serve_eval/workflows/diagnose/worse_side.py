"""Find the side of a comparison that lost score: the other one is sound, and is not explained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from serve_eval.stats.mcnemar import mcnemar
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import Finding

LEVEL = 0.05
"""Largest p at which one side is called worse."""
OF_ANSWERS = frozenset(
    (
        *("truncated", "unclosed_reasoning", "stopped_in_reasoning", "stop_string", "empty"),
        *("misfiled", "looping", "template_marks", "end_tokens", "run_on", "unreadable"),
        *("extraction", "extractors", "worker", "slow_worker", "drift", "concurrency"),
    )
)
"""Rules that explain the answers of a side, or accuse its servers."""


def find_worse(a: TaskEvidence, b: TaskEvidence) -> int | None:
    """Return 0 if A has more wrong or missing answers than B, 1 if B has, or None.

    p is that of McNemar's exact test over the prompts of both sides: of several answers to a
    prompt, the side counts that lost more of them.
    """
    there = {one.id: one.lost for one in b.asked}
    both = [one for one in a.asked if one.id in there]
    more = sum_by_prompt((a, one.id, one.lost - there[one.id]) for one in both)
    only = [sum(change > 0 for change in more), sum(change < 0 for change in more)]
    side = 0 if only[0] > only[1] else 1
    return side if mcnemar(only[side], only[1 - side]).p_exact_two_sided <= LEVEL else None


def sum_by_prompt(changes: Iterable[tuple[TaskEvidence, str, int]]) -> list[int]:
    """Return the sum of the changes of each prompt, given those of its answers by id."""
    sums: dict[str, int] = defaultdict(int)
    for task, sample, change in changes:
        sums[base_of(sample) if task.repeats > 1 else sample] += change
    return list(sums.values())


def drop_sound(
    findings: tuple[Sequence[Finding], Sequence[Finding]], sides: tuple[Evidence, Evidence]
) -> list[tuple[Finding, ...]]:
    """Return the findings about A and about B, without those about answers of a sound side.

    A finding that the worse side has too is about both.
    """
    there = {task.name: task for task in sides[1].tasks}
    worse = {
        task.name: find_worse(task, there[task.name])
        for task in sides[0].tasks
        if task.name in there
    }
    kinds = [{(one.rule, one.task) for one in own} for own in findings]
    return [
        tuple(
            one
            for one in own
            if one.task is None
            or worse.get(one.task) != 1 - side
            or one.rule not in OF_ANSWERS
            or (one.rule, one.task) in kinds[1 - side]
        )
        for side, own in enumerate(findings)
    ]
