"""Choose the verdict rule of each task: the user's, or the one that fits the reference."""

from __future__ import annotations

from itertools import islice

from serve_eval.plan.prepared_task import CLASSIC
from serve_eval.schema import Dataset, Plan, Reference, Spec, Task
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.verdicts.pairing import count_known

PAIRED = Spec(name="paired")
MOST = 10_000
"""Number of prompts after which the least number of groups is no longer looked for."""


def choose_rule(plan: Plan, task: Task, dataset: Dataset, reference: Reference | None) -> Spec:
    """Return the rule that judges a task, with its options.

    If the user names none, scores per sample are judged prompt by prompt, as `compare` judges them.
    A reference that has none, as a published one, is judged by the classic rule, and so is one with
    an explicit threshold, with other prompts, or of a value that cannot be paired. So are fewer
    prompts, or groups of them, than a rule of pairs judges.
    """
    if plan.rule_named or plan.verdict != CLASSIC:
        return plan.verdict
    if reference is None or reference.runs is None or reference.threshold is not None:
        return plan.verdict
    units = {sample.group or f"id {sample.id}" for sample in islice(dataset.samples, MOST)}
    if len(units) < MIN_UNITS:
        return plan.verdict
    if not task.aggregation.paired or count_known(dataset, reference) != len(dataset.samples):
        return plan.verdict
    return PAIRED
