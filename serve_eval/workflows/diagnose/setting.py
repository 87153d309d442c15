"""What the run was asked under and judged by: the protocol, the data, the model, how many samples,
which servers.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from serve_eval.evaluation.prepare import DATASET, OTHER_DATA
from serve_eval.schema import VerdictOutcome
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding

_MOST_ERRORS = 3
"""Errors of a scorer that are told, the most frequent first."""


def protocol(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """The reference was taken under another protocol, which was allowed."""
    if task.report is None or task.passes:
        return
    told = task.report.verdict.protocol or ""
    _, allowed, fields = told.partition("mismatch allowed: ")
    if allowed:
        flags = " ".join(f"--allow-mismatch {field.strip()}" for field in fields.split(","))
        yield _fact(
            task,
            "protocol",
            f"the reference was taken under another protocol: {fields} differ, which was allowed",
            (f"ask as the reference was taken, without {flags}",),
        )
    if "suite_exact would change" in told and task.outcome is VerdictOutcome.FAIL:
        yield _fact(
            task,
            "protocol",
            f"the protocol of the reference is {told}",
            (f"--set {task.name}.suite_exact=true",),
        )


def data(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """The data is not the published set, and a reference of that set judges it all the same."""
    if (
        task.report is None
        or task.passes
        or task.report.reference is None
        or DATASET not in run.plan.allow_mismatch
    ):
        return
    for note in task.report.verdict.warnings:
        if note.startswith(OTHER_DATA):
            change = ("serve-eval datasets verify", f"without --allow-mismatch {DATASET}")
            yield _fact(task, "data", f"{note}; its reference judges it all the same", change)


def too_few(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Nothing is missing and the verdict is open all the same: the samples are too few for it."""
    if (
        task.report is None
        or task.outcome is not VerdictOutcome.INCONCLUSIVE
        or task.report.result.failed
    ):
        return
    verdict, planned = task.report.verdict, task.report.result.planned
    more = [] if run.plan.limit is None else [f"without --limit {run.plan.limit}"]
    more += [f"--repeats {2 * task.repeats}", f"--set {task.name}.num_samples=N"]
    told = f"nothing is missing, and {planned} samples leave it open"
    if verdict.paired is not None and verdict.paired.lower is not None:
        told += (
            f": a drop of up to {max(0.0, -verdict.paired.lower):.2f} points is not excluded, and "
        )
        told += f"{verdict.paired.margin:.2f} matter"
    yield _fact(task, "too_few_samples", told, tuple(more))


def find_missing(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Missing answers are all that keeps the verdict open: why they are missing, other rules
    say.
    """
    if (
        task.report is None
        or task.outcome is not VerdictOutcome.INCONCLUSIVE
        or not task.report.result.failed
    ):
        return
    result = task.report.result
    told = f"{result.failed} of {result.planned} answers are missing, which leaves the verdict open"
    if result.bounds is not None and task.report.verdict.threshold is not None:
        told += (
            f": {result.bounds[0]:.3f} to {result.bounds[1]:.3f} against"
            f" {task.report.verdict.threshold:.3f}"
        )
    yield Finding(
        rule="missing",
        told=told,
        change=(f"serve-eval run --resume {run.place}",),
        count=result.failed,
        of=result.planned,
        explains=len(task.missing),
        lost=len(task.lost),
        task=task.name,
    )


def find_unscored(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """The scorer raised or took too long: these answers are there, and count as missing."""
    for error in () if task.report is None else task.report.result.scorer_errors[:_MOST_ERRORS]:
        yield Finding(
            rule="scorer_error",
            told=f"{error.line}; once the scorer is mended, nothing has to be asked again",
            change=(f"serve-eval run --resume {run.place}", "--scorer-timeout S"),
            count=error.count,
            of=len(task.asked),
            lost=len(task.lost),
            task=task.name,
        )


def find_unsupported(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """The endpoint lacks what the task needs, as the probe found before anything was asked."""
    lacks = run.last.unsupported.get(task.name)
    if lacks is None or task.outcome is not VerdictOutcome.UNSUPPORTED:
        return
    told = f"the endpoint lacks {lacks.need}: {lacks.seen}"
    yield _fact(task, "unsupported", told, (lacks.help or "an endpoint that has it",))


def other_model(run: Evidence) -> Iterator[Finding]:
    """The endpoint lists other models than the one whose reference is used: trtllm-serve takes any
    name.
    """
    listed, wanted = run.info.models, run.plan.model
    if not listed or wanted is None:
        return
    if any(_bare(name) == _bare(wanted) for name in listed):
        return
    yield Finding(
        rule="other_model",
        told=f"the endpoint lists {', '.join(listed)}, and {wanted} was asked for and judged",
        change=(f"--model {shlex.quote(listed[0])}", "--base-url URL of the right server"),
        count=1,
        of=1,
    )


def _bare(model: str) -> str:
    """A model's name without its owner or folder: trtllm-serve lists a folder by its last part."""
    return PurePosixPath(model.rstrip("/")).name.casefold()


def first_token_only(run: Evidence) -> Iterator[Finding]:
    """Every answer is a token or two, behind a disaggregated door: generation servers had hardly a
    part in it.
    """
    tasks = [task for task in run.tasks if task.texts]
    if (
        not tasks
        or not _is_disaggregated(run)
        or any(task.max_tokens > FEW_TOKENS for task in tasks)
    ):
        return
    yield Finding(
        rule="first_token_only",
        told=(
            "every answer is decided by its first token, which comes from a context server: the run"
            " says nothing of the generation servers"
        ),
        change=("--tasks gsm8k, or another one with long answers",),
        count=len(tasks),
        of=len(tasks),
    )


def _is_disaggregated(run: Evidence) -> bool:
    """Whether the endpoint is known to be a disaggregated one."""
    roles = {worker.role for worker in run.info.workers}
    counted = run.info.hidden_retries is not None
    return counted or run.plan.launcher.name == "trtllm_disaggregated" or "generation" in roles


def _fact(task: TaskEvidence, rule: str, told: str, change: tuple[str, ...]) -> Finding:
    """A finding about the whole task, of which nobody can say how much it explains."""
    n = len(task.asked)
    return Finding(
        rule=rule, told=told, change=change, count=n, of=n, lost=len(task.lost), task=task.name
    )
