"""Judge controls: tasks that ask the same questions as another task of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.results.sample_table import SampleTable
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.schema import MEDIUM, TaskReport, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.clusters import cluster_keys
from serve_eval.stats.pairs import pair
from serve_eval.verdicts import repaired, validity
from serve_eval.verdicts.rules import _control
from serve_eval.verdicts.validity import MAX_MISSING

_OWN_FIELDS = ("task", "samples")
"""Fields of the fingerprint in which a control differs from its task."""


def judge_controls(
    reports: Iterable[TaskReport], work: Sequence[TaskRun]
) -> tuple[TaskReport, ...]:
    """Return the reports, those of controls with the comparison with their task as verdict.

    A control keeps its verdict if its task is not in the run, if it was not judged at all, or if
    nothing was scored.
    """
    told = list(reports)
    by_name = {
        one.prepared.task.name: (one, report) for one, report in zip(work, told, strict=True)
    }
    judged = []
    for report, control in zip(told, work, strict=True):
        other = by_name.get(control.prepared.task.control_of or "")
        if other is not None and report.verdict.outcome is VerdictOutcome.NO_REFERENCE:
            report = replace(report, verdict=_judge(report, control, *other))
        judged.append(report)
    return tuple(judged)


def _judge(
    report: TaskReport, control: TaskRun, other: TaskRun, other_report: TaskReport
) -> Verdict:
    kept, name = report.verdict, other.prepared.task.name
    samples = control.prepared.dataset.samples
    if (why := _explain_difference(control, other)) is not None:
        return replace(kept, outcome=VerdictOutcome.INCONCLUSIVE, reasons=(why,))
    both, groups = (control, other), [sample.metadata.get(MEDIUM, "") for sample in samples]
    keys = cluster_keys([sample.group for sample in samples])

    def judge(
        sides: Sequence[SampleTable],
        more_missing: float = 0.0,
        result: TaskResult = report.result,
    ) -> Verdict:
        before, after = (side.runs() for side in sides)
        return _control.judge(
            result,
            name,
            pair(before, after, lo=0.0, hi=1.0, higher_is_better=True, clusters=keys),
            groups,
            alpha=control.prepared.hypothesis.alpha,
            max_missing=min(1.0, MAX_MISSING + more_missing),
        )

    doubted = {i for one in both for i in one.accumulator.list_doubted()}
    try:
        verdict = judge([one.accumulator for one in both])
        if doubted:
            doubt = repaired.Doubt(count=len(doubted), planned=report.result.planned)
            known = [one.accumulator.without_doubted() for one in both]
            policy = repaired.read_policy(other.prepared.rule.options)
            bounded = partial(judge, known, doubt.share)
            verdict = repaired.settle(verdict, bounded, doubt, policy, report.result)
        verdict = _add_cut_effect(verdict, both, (report.result, other_report.result), judge)
    except ServeEvalError as error:
        why = f"not compared with {name}: {error}"
        return replace(kept, outcome=VerdictOutcome.INCONCLUSIVE, reasons=(why,))
    return replace(verdict, warnings=(*kept.warnings, *verdict.warnings))


def _add_cut_effect(
    verdict: Verdict,
    both: tuple[TaskRun, TaskRun],
    results: tuple[TaskResult, TaskResult],
    judge: Callable[..., Verdict],
) -> Verdict:
    """Return the verdict with what it would be if cut answers of either task were right."""
    own, theirs = (
        one.accumulator.with_cuts_right() if result.cut else None
        for one, result in zip(both, results, strict=True)
    )
    control, other = (one.accumulator for one in both)
    right = replace(results[0], value=results[0].cut_value, bounds=results[0].cut_bounds)
    return validity.add_effect(
        verdict,
        results[0],
        own=None if own is None else lambda: judge([own, other], result=right),
        reference_cut=results[1].cut_answers,
        reference_answers=results[1].scored,
        theirs=None if theirs is None else lambda: judge([control, theirs]),
        reference_name=both[1].prepared.task.name,
    )


def _explain_difference(control: TaskRun, other: TaskRun) -> str | None:
    """Return why the questions of two tasks cannot be compared, or None."""
    ids = [[sample.id for sample in one.prepared.dataset.samples] for one in (control, other)]
    ours, theirs = control.prepared.fingerprint, other.prepared.fingerprint
    name = other.prepared.task.name
    differing = [
        field
        for field in sorted({*ours, *theirs} - {*_OWN_FIELDS})
        if ours.get(field) != theirs.get(field)
    ]
    if differing:
        return f"not compared with {name}: it has another {', '.join(differing)}"
    return None if ids[0] == ids[1] else f"not compared with {name}: it asked other questions"
