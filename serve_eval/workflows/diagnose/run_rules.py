"""Apply all rules about one run, with a bound on false reports.

The sum of the levels of the rules bounds the probability that any of them reports something
(Boole's inequality). Facts and counts have no level: they are always true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from serve_eval.workflows.diagnose import (
    between,
    breakdown,
    course,
    endings,
    extraction,
    foreign,
    setting,
    slicing,
    template,
    unanswered,
    unlike,
)
from serve_eval.workflows.diagnose import course as repaired
from serve_eval.workflows.diagnose import course as unfinished
from serve_eval.workflows.diagnose import endings as cut
from serve_eval.workflows.diagnose import setting as other_protocol
from serve_eval.workflows.diagnose import setting as server_defaults
from serve_eval.workflows.diagnose import unlike as surplus
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    BETWEEN_SHARE,
    SIDE_SHARE,
    Finding,
    order_findings,
)
from serve_eval.workflows.diagnose.slice_data import Data, read_data
from serve_eval.workflows.diagnose.slicing import ANSWER_LEVEL, PROMPT_LEVEL
from serve_eval.workflows.diagnose.unlike import UNLIKE

TASK_RULES: tuple[Callable[[Evidence, TaskEvidence], Iterable[Finding]], ...] = (
    unanswered.failures,
    repaired.find_repaired,
    cut.find_truncated,
    cut.find_unclosed_reasoning,
    cut.find_stopped_in_reasoning,
    cut.stop_string,
    cut.empty,
    endings.find_misfiled,
    endings.find_looping,
    endings.find_unlisted,
    template.template_marks,
    template.find_end_tokens,
    template.run_on,
    template.find_doubled_bos,
    extraction.find_stated,
    extraction.extractors,
    extraction.unreadable,
    course.worker,
    course.slow_worker,
    course.drift,
    course.concurrency,
    course.find_retried,
    other_protocol.find_other_protocol,
    setting.data,
    setting.find_unsupported,
    setting.too_few,
    setting.find_missing,
    setting.find_unscored,
)
RUN_RULES: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (
    unanswered.server_errors,
    foreign.foreign_answers,
    course.find_hidden_retries,
    setting.other_model,
    setting.first_token_only,
)


def findings(
    evidence: Evidence, other: Evidence | None = None, name: str = ""
) -> tuple[Finding, ...]:
    """Return the findings of all rules about one run.

    A run with an `other` side, of that `name`, is compared with it, not with its reference.
    """
    alone = other is None
    found = [finding for of_run in RUN_RULES for finding in of_run(evidence)]
    found += [
        finding
        for rule in TASK_RULES
        for task in evidence.tasks
        for finding in rule(evidence, task)
    ]
    found += server_defaults.find_added(evidence, other, name)
    data: Data = {}
    searched = alone and any(task.lost or _has_answers(task) for task in evidence.tasks)
    if searched:
        data = read_data(evidence)
    found = _keep_surplus(evidence, found, data, other, name)
    found = other_protocol.demote_cuts(found)
    if searched:
        found += [
            one for task in evidence.tasks for one in unlike.find_unlike(evidence, task, data)
        ]
        found += slicing.find_slices(evidence, found, data)
    # An option that differs is known, and what answers look like is only its effect.
    first = list(setting.other_launch(evidence)) if alone else []
    even = (
        list(breakdown.find_even_loss(evidence, found, data, differs=bool(first))) if alone else []
    )
    if first and even:  # nothing else explains the loss, so the difference is the likeliest cause
        first = [replace(one, leads=True, rather=breakdown.OTHER_LAUNCH) for one in first]
    ended = unfinished.find_unfinished(evidence)
    return (*ended, *first, *order_findings((*found, *even)))


def _has_answers(task: TaskEvidence) -> bool:
    """Return True if the reference of a task may describe its answers."""
    reference = None if task.report is None else task.report.reference
    return reference is not None and reference.runs is not None


def _keep_surplus(
    evidence: Evidence,
    found: Sequence[Finding],
    data: Data,
    other: Evidence | None,
    name: str,
) -> list[Finding]:
    """Return findings that explain only what the reference, or the other side, lacks."""
    there = {} if other is None else {task.name: task for task in other.tasks}
    kept = list(found)
    for task in evidence.tasks:
        if other is None:
            before = surplus.read_reference(task, data)
        else:
            before = surplus.read_side(name, there[task.name]) if task.name in there else None
        kept = surplus.keep_surplus(kept, task, before)
    return kept


OF_A_TASK = {
    "truncated": ALPHA,
    "stop_string": ALPHA,
    "run_on": ALPHA,
    "extractors": ALPHA,
    "concurrency": ALPHA,
    "worker": course.WORKER,
    "slow_worker": course.SLOW_WORKER,
    "drift": course.DRIFT,
}
"""Levels of the rules that test the tasks of a run, which share them."""
OF_A_RUN = {
    "server_errors": ALPHA,
    "foreign_answers": ALPHA,
    "slice": PROMPT_LEVEL,
    "unlike": UNLIKE,
}
"""Levels of the rules that test a run as a whole."""
OF_A_COMPARISON = {**between.LEVELS, "slice": PROMPT_LEVEL + ANSWER_LEVEL}
"""Levels of the rules that test B against A, before BETWEEN_SHARE.

The runs of a comparison are neither searched for slices nor compared with a reference: they are
compared with each other."""
TESTS = OF_A_TASK.keys() | OF_A_RUN.keys() | OF_A_COMPARISON.keys()


def sum_levels() -> float:
    """Return the largest probability that any test reports a healthy run, of any number of tasks.

    The level of each rule is shared by the tasks.
    """
    return sum(OF_A_TASK.values()) + sum(OF_A_RUN.values())


def sum_comparison_levels() -> float:
    """Return the same for a comparison of two healthy runs."""
    return 2 * SIDE_SHARE * sum_levels() + BETWEEN_SHARE * sum(OF_A_COMPARISON.values())
