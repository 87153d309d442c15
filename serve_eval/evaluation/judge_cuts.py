"""Judge a task again as if the answers had been right that were cut off, on either side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serve_eval.evaluation.task_run import TaskRun
from serve_eval.schema import Reference, TaskResult, Verdict
from serve_eval.verdicts import cut_answers, pairing, reference_cuts


def add_cut_effect(
    verdict: Verdict,
    task_run: TaskRun,
    result: TaskResult,
    reference: Reference,
    judge: Callable[..., Verdict],
) -> Verdict:
    """Return the verdict with what it would be if cut answers of either side were right.

    `judge(result, pairs, against)` is the rule; `against` is the reference unless it is given.
    """
    task, dataset = task_run.prepared.task, task_run.prepared.dataset
    right = task_run.accumulator.with_cuts_right() if result.cut else None
    better = reference_cuts.with_cuts_right(task, dataset, reference)

    def judge_own() -> Verdict:
        assert right is not None
        pairs, _ = pairing.with_reference(task, dataset, reference, right.runs())
        return judge(replace(result, value=result.cut_value, bounds=result.cut_bounds), pairs)

    def judge_theirs() -> Verdict:
        assert better is not None
        assert better.reference is not None
        runs = task_run.accumulator.runs()
        pairs, _ = pairing.with_reference(task, dataset, reference, runs, cuts_right=True)
        return judge(result, pairs, against=better.reference)

    return cut_answers.add_effect(
        verdict,
        result,
        own=judge_own if right is not None and result.cut_value is not None else None,
        reference_cut=None if better is None else better.cut,
        reference_answers=None if better is None else better.answers,
        theirs=judge_theirs if better is not None and better.reference and better.cut else None,
        reference_name="the reference"
        if better is None or better.runs == 1
        else f"the reference's {better.runs} runs",
    )
