"""Describe the report of a run for CI systems. Pure.

FAIL is a failure. ERROR is an error, and so is an undecided verdict because answers are missing or
a path is not proven: the deployment did not do what was asked. What is undecided for another
reason, or has no verdict, is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evaluation.steps.nothing_asked import describe_old_answers
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.ci.properties import list_figures, list_other
from serve_eval.report.lines import count_lost
from serve_eval.report.one_line import OneLine, lead
from serve_eval.report.repeats import describe_repeats
from serve_eval.report.summary.figures import count
from serve_eval.report.summary.next_steps import explain_taking, next_steps
from serve_eval.report.summary.rows import describe_rules
from serve_eval.report.summary.summary_task import SummaryTask, summarise_task
from serve_eval.report.summary.table import COLUMNS, ORDER, cells, name_worst
from serve_eval.report.task_line import BROKEN, make_task_line
from serve_eval.schema import (
    REHEARSED,
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


def describe_report(
    report: Report, out_dir: Path, causes: Mapping[str, str] | None = None
) -> CiResult:
    """Return the result of a run. `causes` has the likeliest cause by task, as far as known."""
    old = describe_old_answers(report.warnings)
    cases = name_old(list_cases(report, causes or {}), old)
    suite = CiSuite(
        name=f"serve-eval run {report.plan.model}",
        cases=cases,
        host=report.endpoint.base_url,
        seconds=report.wall_s,
    )
    return CiResult(
        notice=REHEARSED if report.rehearsal else old,
        title=f"serve-eval run of {report.plan.model} at {report.endpoint.base_url}",
        outcome=name_worst([task.verdict.outcome for task in report.tasks]),
        suites=[suite],
        table=CiTable(columns=COLUMNS, rows=list_rows(report)),
        notes=[*_list_notes(report), *explain_taking(report)],
        commands=list(next_steps(report, out_dir)),
        line=choose_line(cases, [task.verdict.outcome for task in report.tasks]),
    )


def list_cases(report: Report, causes: Mapping[str, str] | None = None) -> list[CiCase]:
    """Return the test cases of a run: its tasks, and each part of the path that was expected."""
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
    led = lead_tasks(lines, [task.verdict.outcome for task in report.tasks])
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


def list_rows(report: Report) -> list[list[str]]:
    """Return the rows of the table of tasks, as the summary prints them."""
    return [[cell.plain for cell in cells(summarise_task(task))] for task in report.tasks]


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


def _list_notes(report: Report) -> Iterator[str]:
    """Yield what was flaky, always, since silence says nothing; then the warnings of the run."""
    retries = sum(n for task in report.tasks for n in task.traffic.retries.values())
    failed = sum(task.result.failed for task in report.tasks)
    repeated = f"{count(retries, 'request')} repeated after a failure"
    again = sum(task.result.doubted for task in report.tasks)
    flaky = [repeated, f"{count(failed, 'sample')} without an answer"]
    flaky.append(f"{count(again, 'sample')} repaired")
    for task in report.tasks:
        if (stability := task.result.stability) is not None and stability.mixed is not None:
            mixed = round(stability.mixed * stability.prompts)
            flaky.append(
                f"{task.result.task}: {count(mixed, 'prompt')} of {stability.prompts:,} right in"
                " some repeats and wrong in others"
            )
    for task in report.tasks:
        if task.result.stability is not None:
            yield f"{task.result.task}: {describe_repeats(task.result)}"
    for task in report.tasks:
        yield from (f"rule: {line}" for line in name_rules(summarise_task(task)))
    yield f"flaky: {'; '.join(flaky)}"
    yield from (f"warning: {line}" for line in report.warnings)
