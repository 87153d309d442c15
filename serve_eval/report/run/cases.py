"""List the test cases of a run for CI systems. Pure.

FAIL is a failure. ERROR is an error, and so is an undecided verdict because answers are missing or
a path is not proven: the deployment did not do what was asked. What is undecided for another
reason, or has no verdict, is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from serve_eval.report.ci.ci_result import CiCase, CiState
from serve_eval.report.ci.properties import list_figures, list_other
from serve_eval.report.lines import count_lost
from serve_eval.report.one_line import OneLine, lead
from serve_eval.report.summary.figures import count
from serve_eval.report.summary.rows import describe_rules
from serve_eval.report.summary.summary_task import SummaryTask, summarise_task
from serve_eval.report.summary.table import ORDER
from serve_eval.report.task_line import BROKEN, make_task_line
from serve_eval.schema import (
    PathFinding,
    ProofState,
    Report,
    TaskReport,
    TaskResult,
    VerdictOutcome,
)
from serve_eval.verdicts import cut_answers, repaired, two_rules
from serve_eval.verdicts.validity import CHOSEN_SAMPLES

_STATES = {
    VerdictOutcome.PASS: CiState.PASSED,
    VerdictOutcome.FAIL: CiState.FAILURE,
    VerdictOutcome.ERROR: CiState.ERROR,
}
"""The state of an outcome; the others are skipped."""


def make_lines(report: Report, causes: Mapping[str, str] | None = None) -> list[OneLine]:
    """Return the line of each task, of which the worst speaks for all.

    `causes` has the likeliest cause by task, as far as known.
    """
    lines = [
        make_task_line(
            summarise_task(task),
            report.plan.model,
            found=(causes or {}).get(task.result.task, ""),
            attribution=task.attribution,
            degradations=task.degradations,
        )
        for task in report.tasks
    ]
    return lead_tasks(lines, [task.verdict.outcome for task in report.tasks])


def list_cases(report: Report, causes: Mapping[str, str] | None = None) -> list[CiCase]:
    """Return the test cases of a run: its tasks, and each part of the path that was expected."""
    led = make_lines(report, causes)
    tasks = [_describe_task(task, line) for task, line in zip(report.tasks, led, strict=True)]
    return [*tasks, *map(_describe_finding, report.path)]


def name_old(cases: Sequence[CiCase], old: str) -> list[CiCase]:
    """Return the cases, whose lines begin with the notice `old` that their answers are old."""
    return [
        case if case.line is None or not old else replace(case, line=replace(case.line, notice=old))
        for case in cases
    ]


def lead_tasks(lines: Sequence[OneLine], outcomes: Sequence[VerdictOutcome]) -> list[OneLine]:
    """Return the lines of tasks, of which the worst speaks for all."""
    return lead(lines, [ORDER.index(one) for one in outcomes], "tasks")


def choose_line(cases: Sequence[CiCase], outcomes: Sequence[VerdictOutcome]) -> OneLine | None:
    """Return the line of the first case with the worst outcome; the cases of tasks come first."""
    if not outcomes:
        return None
    return cases[min(range(len(outcomes)), key=lambda i: ORDER.index(outcomes[i]))].line


def choose_state(outcome: VerdictOutcome, reasons: Sequence[str]) -> CiState:
    """Return the state of a verdict."""
    if outcome is VerdictOutcome.INCONCLUSIVE and any(
        reason.startswith(BROKEN) for reason in reasons
    ):
        return CiState.ERROR
    return _STATES.get(outcome, CiState.SKIPPED)


def _describe_task(task: TaskReport, line: OneLine) -> CiCase:
    verdict = task.verdict
    state = choose_state(verdict.outcome, verdict.reasons)
    return CiCase(
        group="task",
        name=task.result.task,
        state=state,
        line=line,
        details=[
            *verdict.reasons,
            *name_rules(summarise_task(task)),
            *(f"warning: {line}" for line in verdict.warnings),
        ],
        properties={
            **dict(list_figures(summarise_task(task), line)),
            **list_other(verdict.other),
            "retries": str(sum(task.traffic.retries.values())),
        },
        remarks=[*pick_remarks(verdict.warnings), *remark_on_losses(task.result)],
    )


def name_rules(task: SummaryTask) -> list[str]:
    """Return which rule judged and what the other one says, if there is another."""
    return [] if task.verdict.other is None else [f"{task.result.task}: {describe_rules(task)}"]


_REMARKS = (two_rules.DISAGREE, "small_drop", CHOSEN_SAMPLES, cut_answers.CUT, *repaired.WARNINGS)


def pick_remarks(warnings: Sequence[str]) -> list[str]:
    """Return the warnings that must be seen even if a task passed."""
    return [line for line in warnings if line.startswith(_REMARKS)]


def remark_on_losses(result: TaskResult) -> list[str]:
    """Return how many of the samples were repaired, if any."""
    if not result.doubted:
        return []
    return [f"{', '.join(count_lost(result))}, of {count(result.planned, 'sample')}"]


def _describe_finding(found: PathFinding) -> CiCase:
    proven = found.state is ProofState.PROVEN
    return CiCase(
        group="path",
        name=found.claim,
        state=CiState.PASSED if proven else CiState.ERROR if found.blocks else CiState.SKIPPED,
        message=found.state if proven else found.reason,
        details=[one for one in (found.evidence, found.hint) if one],
    )
