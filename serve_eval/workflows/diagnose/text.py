"""Format a diagnosis as text: the result of each task, then the findings, the largest first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from serve_eval.report.layout import say
from serve_eval.workflows.diagnose.breakdown import describe_examples, describe_kinds
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.story import DiagnosedRun, DiagnosedTask, Diagnosis
from serve_eval.workflows.diagnose.unfinished import RULE as UNFINISHED

_INDENT = "   "
_JUDGED = ("PASS", "FAIL", "INCONCLUSIVE")


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print the diagnosis."""
    for line in lines(diagnosis):
        say(console, line)


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the lines to print."""
    yield from diagnosis.verdict
    if diagnosis.verdict:
        yield ""
    for run in diagnosis.runs:
        yield from _run(run, side=diagnosis.compared, explained=bool(diagnosis.between))
    if diagnosis.between:
        yield "A compared with B"
        for number, finding in enumerate(diagnosis.between, 1):
            yield from _describe_finding(number, finding)


def _run(run: DiagnosedRun, *, side: bool, explained: bool) -> Iterator[str]:
    """Yield the lines of a run. `explained`: the comparison of both sides has a finding."""
    label = f"{run.label}: " if run.label else ""
    findings = list(enumerate(run.findings, 1))
    ended = findings[:1] if run.findings and run.findings[0].rule == UNFINISHED else []
    for number, finding in ended:
        first, *more = _describe_finding(number, finding)
        yield from (f"{label}{first}", *more)
    for task in run.tasks:
        yield f"{label}{_task(task, side=side)}"
        if task.breakdown is not None:
            yield f"{_INDENT}{describe_kinds(task.breakdown)}"
        for accusation in task.accused:
            yield f"{_INDENT}the report names {accusation}"
    yield from _say_unexplained(run, label, explained)
    for number, finding in findings[len(ended) :]:
        yield from _describe_finding(number, finding)
    for task in run.tasks:
        if task.breakdown is not None:
            several = f" ({task.task})" if len(run.tasks) > 1 else ""
            yield f"the lost samples{several}"
            for line in describe_examples(task.breakdown):
                yield f"{_INDENT}{line}"
    yield ""


def _say_unexplained(run: DiagnosedRun, label: str, explained: bool) -> Iterator[str]:
    """Yield a line for a run without findings."""
    red = any(task.breakdown is not None for task in run.tasks)
    if not run.findings and not red:
        yield f"{label}nothing to explain ({run.folder})"
    elif not run.findings and not explained:
        yield f"{label}no rule explains the lost samples ({run.folder})"


def _task(task: DiagnosedTask, *, side: bool) -> str:
    """Return the result of a task. That the side of a comparison lacks a reference says nothing."""
    outcome = "" if side and task.outcome == "NO REFERENCE" else task.outcome
    value = "" if task.value is None else f"{task.value:.3f}"
    ended = "the run did not finish" if task.outcome is None else outcome
    if task.in_suite:
        ended = f"{ended} alone; in the suite: {task.in_suite}"
    said = f"{task.task}: {', '.join(filter(None, (ended, value)))}"
    if task.breakdown is not None and task.breakdown.reference is not None:
        said += f" (reference {task.breakdown.reference:.3f})"
    limits = [task.rule] if task.rule and task.outcome in _JUDGED else []
    limits += [] if task.threshold is None else [f"threshold {task.threshold:.3f}"]
    limits += [] if task.margin is None else [f"margin {task.margin:.3f}"]
    said += f" ({', '.join(limits)})" if limits else ""
    return f"{said}; {task.wrong} of {task.asked} samples are wrong, {task.missing} missing"


def _describe_finding(number: int, finding: Finding) -> Iterator[str]:
    where = f" ({finding.task})" if finding.task else ""
    yield f"{number}. {finding.rule}{where}: {finding.told}"
    if finding.explains is not None:
        p = "" if finding.p is None else f" (p {finding.write_p()})"
        yield (
            f"{_INDENT}explains up to {finding.explains} of {finding.lost} wrong or missing"
            f" answers{p}"
        )
    for i, change in enumerate(finding.change):
        yield f"{_INDENT}{'change: ' if i == 0 else 'or:     '}{change}"
    if finding.samples:
        yield f"{_INDENT}samples: {', '.join(finding.samples)}"
    for line in finding.log:
        yield f"{_INDENT}log: {line}"
